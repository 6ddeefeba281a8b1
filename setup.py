"""What pyproject.toml can't say: a wheel holds pages, demo data and examples inside the packages that use them."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["core*", "studio*"]), "studio.pages", "core.demo_data", "core.examples"],
    package_dir={"studio.pages": "pages", "core.demo_data": "demo_data", "core.examples": "examples"},
)
