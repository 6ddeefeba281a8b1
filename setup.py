"""What pyproject.toml can't say: a wheel holds the pages and the demo data inside the packages that read them."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["core*", "studio*"]), "studio.pages", "core.demo_data"],
    package_dir={"studio.pages": "pages", "core.demo_data": "demo_data"},
)
