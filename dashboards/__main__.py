"""``python -m dashboards``: write the boards into the Helm chart's ``files/boards``.

The folders ``prometheus`` and ``grafana`` of this package are links into the chart, which an installed package has as
files.
"""

from dashboards import boards, rules

for name, text in boards.files().items():
    (rules.FILES / "boards" / name).write_text(text)
