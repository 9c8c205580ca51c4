"""Check the installed distributions: version, description, license, type marker, and that every module can be imported.

python check_installed.py VERSION
"""

import importlib
import pkgutil
import sys
from importlib.metadata import metadata, version
from importlib.resources import files

expected, *names = sys.argv[1:]
# Alembic runs its environment and its versions itself; __main__ runs a command.
NOT_IMPORTED = (".migrations.", ".__main__")
# Packages of extras: a module that needs one may be left out, because the release is tested without the extras.
OF_EXTRAS = {"mlflow", "opentelemetry", "pandas", "polars", "pyarrow", "tensorboardX"}


def importable(module: str) -> bool:
    """Import a module; false if it needs a package of an extra that is not installed."""
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in OF_EXTRAS:
            raise
        return False
    return True


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
    described = metadata(distribution)
    licenses = described.get_all("License-File", ())
    if described["Description-Content-Type"] != "text/markdown" or "LICENSE" not in licenses:
        sys.exit(f"the wheel of {distribution} has no long description, or no license")
    modules = [found.name for found in pkgutil.walk_packages(package.__path__, f"{module_name}.")]
    wanted = [module for module in modules if not any(part in module for part in NOT_IMPORTED)]
    left_out = [module for module in wanted if not importable(module)]
    print(f"{distribution} {expected}: {len(wanted) - len(left_out)} modules imported, without extras: {left_out}")

if "server" in names:
    guides = importlib.import_module("qidpfl_server.api.document.guides")
    for guide in guides.GUIDES:
        if "<h1" not in guides.guide_page(guide):
            sys.exit(f"the wheel of qidpfl-server has no guide {guide}")
    for name in guides.FILES:
        if not guides.guide_file(name):
            sys.exit(f"the wheel of qidpfl-server has no {name}")
    if b'"noise"' not in guides.golden_vectors():
        sys.exit("the wheel of qidpfl-server has no golden vectors")
