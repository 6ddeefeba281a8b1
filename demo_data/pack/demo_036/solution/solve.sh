#!/usr/bin/env bash
set -euo pipefail

cp -R "$(dirname "$0")/files/." .
mkdir -p sorted/invoice sorted/recipe
cp inbox/scan52440.txt sorted/invoice/
cp inbox/scan43223.txt sorted/invoice/
cp inbox/scan22424.txt sorted/invoice/
cp inbox/scan12565.txt sorted/invoice/
cp inbox/scan59356.txt sorted/invoice/
cp inbox/scan95617.txt sorted/invoice/
cp inbox/scan21219.txt sorted/invoice/
cp inbox/scan38191.txt sorted/recipe/
cp inbox/scan71052.txt sorted/recipe/
cp inbox/scan35858.txt sorted/recipe/
