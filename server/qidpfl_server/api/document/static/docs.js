// Starts Swagger UI on the document of this coordinator. It validates nothing elsewhere and keeps no token.
SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  docExpansion: "list",
  validatorUrl: null,
  persistAuthorization: false,
});
