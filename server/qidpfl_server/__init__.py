"""The coordinator: a service that runs federated tasks, from enrolment to the last payment."""
