#!/usr/bin/env bash
set -euo pipefail

cp -R "$(dirname "$0")/files/." .
mkdir -p sorted/invoice sorted/letter sorted/recipe
cp inbox/scan97580.txt sorted/invoice/
cp inbox/scan38834.txt sorted/invoice/
cp inbox/scan56131.txt sorted/letter/
cp inbox/scan87172.txt sorted/letter/
cp inbox/scan52466.txt sorted/letter/
cp inbox/scan84213.txt sorted/recipe/
cp inbox/scan46495.txt sorted/recipe/
