#!/usr/bin/env bash
# From CSV files to a certificate.
# Five hospitals train a model that predicts readmissions. Each keeps its table; the certificate at the end says what
# was promised and lets anybody check that it was kept. Run it with `bash examples/five_hospitals.sh NEW_FOLDER`; the
# deployment needs `pip install 'tacit[deploy]'`.
set -euo pipefail
examples=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?name a new folder}" && cd "$1"

# ## 1. The hospitals' tables
#
# They are made up here: age, blood pressure, ward and so on, with gaps, an identifier and a target in words. To type
# the commands yourself, say first where the examples are: `examples=FOLDER_OF_TACIT/examples`.
python "$examples/hospital_tables.py" .
files=north.csv,south.csv,east.csv,west.csv,coast.csv
# ## 2. A schema
#
# It says what is publicly known about the tables, and is drafted from one of them. Identifiers are left out. What was
# taken from records is marked.
tacit schema draft north.csv --target readmitted --out schema.toml
# ## 3. Confirm it
#
# Somebody reads the draft, confirms that the marked values are public, and deletes the list of them. A run refuses a
# schema that still has the list. What range the blood pressure has is nobody's public knowledge here: it is to be
# learned from the records, at a privacy cost that all promises below include.
sed -i.draft -e '/^looked_at/d' -e '/columns.pressure/,/^$/s/^range = .*/range = "learn"\
within = [40, 300]/' schema.toml
# ## 4. Check
#
# Every hospital can check that its own table fits.
tacit schema check south.csv --schema schema.toml
# ## 5. A rehearsal
#
# Is this epsilon enough? A simulation on one machine says so before anybody is asked to take part.
tacit run --data "$files" --schema schema.toml --epsilon 4 --out rehearsal
# ## 6. The real run
#
# The same over a network: five silos and a server as separate processes, with noise that nobody can recompute. With
# real hospitals, every silo is on its own machine: see [deploy a consortium](../deploy.md).
tacit deploy --local 5 --data "$files" --schema schema.toml --epsilon 4 --rounds "${ROUNDS:-30}" --out consortium
# ## 7. The certificate
#
# What was promised, recomputed from the signed ledgers of the silos.
tacit verify consortium/server/state/certificate.json
# ## 8. The model in use
tacit predict consortium new.csv --coefficients
