#!/usr/bin/env bash
set -euo pipefail

cp -R "$(dirname "$0")/files/." .
mkdir -p sorted/invoice sorted/letter sorted/recipe
cp inbox/scan38993.txt sorted/invoice/
cp inbox/scan11687.txt sorted/invoice/
cp inbox/scan53570.txt sorted/letter/
cp inbox/scan62614.txt sorted/letter/
cp inbox/scan71816.txt sorted/letter/
cp inbox/scan73861.txt sorted/recipe/
cp inbox/scan30352.txt sorted/recipe/
cp inbox/scan56115.txt sorted/recipe/
