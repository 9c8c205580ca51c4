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
    package = importlib.import_module(f"qidpfl_{name}")
    if "site-packages" not in (package.__file__ or ""):
        sys.exit(f"qidpfl_{name} is not imported from its wheel, but from {package.__file__}")
    if version(f"qidpfl-{name}") != expected:
        sys.exit(f"qidpfl-{name} has version {version(f'qidpfl-{name}')}; expected {expected}")
    if not files(package).joinpath("py.typed").is_file():
        sys.exit(f"the wheel of qidpfl-{name} has no py.typed")
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, f"qidpfl_{name}.")]
    imported = [module for module in modules if not any(part in module for part in NOT_IMPORTED)]
    for module in imported:
        importlib.import_module(module)
    print(f"qidpfl-{name} {expected}: {len(imported)} modules imported")

if "server" in names:
    guides = importlib.import_module("qidpfl_server.api.document.guides")
    for guide in guides.GUIDES:
        if "<h1" not in guides.guide_page(guide):
            sys.exit(f"the wheel of qidpfl-server has no guide {guide}")
