#!/usr/bin/env bash
set -euo pipefail

cp -R "$(dirname "$0")/files/." .
