#!/usr/bin/env bash
# Derives schema.json from Grafana's published types: make.sh [VERSION]
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
npm install --silent --ignore-scripts "@grafana/schema@${1:-13.2.3}" ts-json-schema-generator >/dev/null
raw=node_modules/@grafana/schema/dist/types/raw
make() { npx ts-json-schema-generator --no-type-check --path "$raw/$1/x/types.gen.d.ts" --type "$2" -o "$3.json"; }
make dashboard Dashboard dashboard
for panel in timeseries stat heatmap barchart table; do
    make "composable/$panel/panelcfg" Options "$panel.options"
    make "composable/$panel/panelcfg" FieldConfig "$panel.custom"
done
python3 - "$here/schema.json" <<'PYTHON'
import json, pathlib, sys

def bare(value):
    if isinstance(value, dict):
        return {k: bare(v) for k, v in value.items() if not (k == "description" and isinstance(v, str))}
    return [bare(v) for v in value] if isinstance(value, list) else value

found = {p.stem: bare(json.loads(p.read_text())) for p in sorted(pathlib.Path().glob("*.json")) if "package" not in p.stem}
pathlib.Path(sys.argv[1]).write_text(json.dumps(found, sort_keys=True, separators=(",", ":")) + "\n")
PYTHON
