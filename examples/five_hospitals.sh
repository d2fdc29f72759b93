#!/usr/bin/env bash
# Five hospitals, from their CSV files to a certificate to predictions for new patients.
# Usage: bash examples/five_hospitals.sh NEW_FOLDER        (needs pip install 'tacit[deploy]')
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1" && cd "$1"
files=north.csv,south.csv,east.csv,west.csv,coast.csv

# 1. The hospitals' tables.
python "$here/hospital_tables.py" .
# 2. A schema, drafted from one table. Identifiers are left out; what was taken from records is marked.
tacit schema draft north.csv --target readmitted --out schema.toml
# 3. Somebody reads it, confirms that the marked values are public, and deletes the list of them.
sed -i.draft '/^looked_at/d' schema.toml
# 4. Every hospital can check its own table.
tacit schema check south.csv --schema schema.toml
# 5. A simulation: is this epsilon enough?
tacit run --data "$files" --schema schema.toml --epsilon 4 --out rehearsal
# 6. The same over a network: five silos and a server as separate processes, with noise that nobody can recompute.
tacit deploy --local 5 --data "$files" --schema schema.toml --epsilon 4 --rounds "${ROUNDS:-30}" --out consortium
# 7. What was promised, recomputed from the signed ledgers.
tacit verify consortium/server/state/certificate.json
# 8. The model in use.
tacit predict consortium new.csv --coefficients
