#!/usr/bin/env bash
set -euo pipefail

cp -R "$(dirname "$0")/files/." .
mkdir -p sorted/invoice sorted/letter sorted/recipe
cp inbox/scan44490.txt sorted/invoice/
cp inbox/scan32751.txt sorted/invoice/
cp inbox/scan92844.txt sorted/invoice/
cp inbox/scan29565.txt sorted/invoice/
cp inbox/scan48386.txt sorted/invoice/
cp inbox/scan44982.txt sorted/letter/
cp inbox/scan42627.txt sorted/letter/
cp inbox/scan12968.txt sorted/letter/
cp inbox/scan77653.txt sorted/recipe/
