"""Check the installed distributions: version, type marker, and that every module can be imported.

python check_installed.py VERSION
"""

import importlib
import pkgutil
import sys
from importlib.metadata import version
from importlib.resources import files

expected, *names = sys.argv[1:]
# Alembic runs its environment and its versions itself; __main__ runs a command.
NOT_IMPORTED = (".migrations.", ".__main__")

for name in names:
    # The package of `qidpfl` has its name, the others have it as a prefix.
    module_name = "qidpfl" if name == "qidpfl" else f"qidpfl_{name}"
    distribution = module_name.replace("_", "-")
    package = importlib.import_module(module_name)
    if "site-packages" not in (package.__file__ or ""):
        sys.exit(f"{module_name} is not imported from its wheel, but from {package.__file__}")
    if version(distribution) != expected:
        sys.exit(f"{distribution} has version {version(distribution)}; expected {expected}")
    if not files(package).joinpath("py.typed").is_file():
        sys.exit(f"the wheel of {distribution} has no py.typed")
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, f"{module_name}.")]
    imported = [module for module in modules if not any(part in module for part in NOT_IMPORTED)]
    for module in imported:
        importlib.import_module(module)
    print(f"{distribution} {expected}: {len(imported)} modules imported")

if "server" in names:
    guides = importlib.import_module("qidpfl_server.api.document.guides")
    for guide in guides.GUIDES:
        if "<h1" not in guides.guide_page(guide):
            sys.exit(f"the wheel of qidpfl-server has no guide {guide}")
