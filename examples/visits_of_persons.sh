#!/usr/bin/env bash
# Patients with several visits each: the promise is to patients, not to visits.
# Usage: bash examples/visits_of_persons.sh NEW_FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?name a new folder}" && cd "$1"

# 1. One table with a column for the patient and one for the hospital; the target is a whole number.
python "$here/hospital_tables.py" .
# 2. The draft finds persons with several rows, and that a cost is no class.
tacit schema draft visits.csv --target cost --out schema.toml
# 3. Read it, confirm what is marked as looked at, delete the list.
sed -i.draft '/^looked_at/d' schema.toml
# 4. All rows of a patient are one record: sampled, bounded and hidden together.
tacit run --data visits.csv --schema schema.toml --epsilon 4 --out run
# 5. The epsilon, recomputed from the ledger.
tacit account run
# 6. What the model learned, in euros per day, and predictions in euros.
tacit predict run visits.csv --coefficients --out predictions.csv
