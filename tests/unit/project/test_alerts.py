"""`deploy/alerts.yaml` and the dashboard use metrics that exist, and each alert fires when it must."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.kit.prometheus import program, queries_of
from tools.reference import metric_families, query_metric_families

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "deploy" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
OPERATE = ROOT / "docs" / "guide" / "operate.md"

_REGION = 'region="r-1"'
_WORK = 'region="r-1",sink="out"'
FIRES: Mapping[str, tuple[str, str, str]] = {
    "SluiceDriverDown": ('up{job="sluice"}', "0x40", 'job="sluice"'),
    "SluiceJobDoesNotStart": ("sluice_job_running", "0x40", ""),
    "SluiceWaitingForResources": ("sluice_waiting_for_resources", "1x40", ""),
    "SluiceOutputDelayed": ("sluice_checkpoint_pending_seconds", "601x40", ""),
    "SluiceTransactionOld": (f"sluice_open_transaction_alarm{{{_WORK}}}", "0.5x40", _WORK),
    "SluiceTransactionNearTimeout": (f"sluice_open_transaction_alarm{{{_WORK}}}", "0.8x40", _WORK),
    "SluiceRegionSuspended": (f"sluice_region_suspended{{{_REGION}}}", "1x40", _REGION),
    "SluiceRecordsLost": (f"sluice_region_lost_records{{{_REGION}}}", "7x40", _REGION),
    "SluiceRegionUnderPressure": (f"sluice_region_pressure_alarm{{{_REGION}}}", "1x40", _REGION),
    "SluiceRegionRestarts": (
        f"sluice_region_attempts_ended_total{{{_REGION}}}",
        "0+1x40",
        _REGION,
    ),
    "SluiceCheckpointsAborted": ("sluice_checkpoints_aborted_total", "0+1x40", ""),
    "SluicePoisonRecords": (
        'sluice_function_records_total{operator="clean",outcome="skipped"}',
        "0+1x40",
        'operator="clean",outcome="skipped"',
    ),
    "SluiceOffsetsDropped": ("sluice_offsets_dropped_total", "0+1x40", ""),
    "SluiceSavepointFailed": (
        'sluice_savepoints_total{kind="full",outcome="failed"}',
        "0+1x40",
        'kind="full",outcome="failed"',
    ),
    "SluiceHistoryNotWritten": ("sluice_history_write_failures_total", "0+1x40", ""),
    "SluiceQueryFailed": ('sluice_query_failed{query="q"}', "1x40", 'query="q"'),
    "SluiceQueryTransactionOld": (
        'sluice_query_open_transaction_alarm{query="q",sink="out"}',
        "0.5x40",
        'query="q",sink="out"',
    ),
    "SluiceQueryTransactionNearTimeout": (
        'sluice_query_open_transaction_alarm{query="q",sink="out"}',
        "0.8x40",
        'query="q",sink="out"',
    ),
}
"""By alert: a series with which it fires after half an hour, and the labels of the alert."""

QUIET = {
    'up{job="sluice"}': "1x40",
    "sluice_job_running": "1x40",
    "sluice_waiting_for_resources": "0x40",
    "sluice_checkpoint_pending_seconds": "599x40",
    f"sluice_open_transaction_alarm{{{_WORK}}}": "0x40",
    f"sluice_region_suspended{{{_REGION}}}": "0x40",
    f"sluice_region_lost_records{{{_REGION}}}": "0x40",
    f"sluice_region_pressure_alarm{{{_REGION}}}": "0x40",
    f"sluice_region_attempts_ended_total{{{_REGION}}}": "3x40",
    "sluice_checkpoints_aborted_total": "3x40",
    'sluice_function_records_total{operator="clean",outcome="read"}': "0+100x40",
    'sluice_function_records_total{operator="clean",outcome="skipped"}': "5x40",
    "sluice_offsets_dropped_total": "5x40",
    'sluice_savepoints_total{kind="full",outcome="completed"}': "0+1x40",
    "sluice_history_write_failures_total": "1x40",
    'sluice_query_failed{query="q"}': "0x40",
    'sluice_query_open_transaction_alarm{query="q",sink="out"}': "0x40",
}


def names_in(text: str) -> set[str]:
    return set(re.findall(r"- alert: (\w+)", text))


def metrics_in(queries: str) -> set[str]:
    return set(re.findall(r"\bsluice_(?!jobs|queries)\w+", queries))


def exposed() -> set[str]:
    """Also the series of histograms and summaries."""
    return {
        each
        for name, family, _ in (*metric_families(), *query_metric_families())
        for each in (
            (name,)
            if family.type in ("counter", "gauge")
            else (f"{name}_bucket", f"{name}_sum", f"{name}_count")
        )
    }


def expressions() -> list[str]:
    return re.findall(r"^ +expr: (.*)$", ALERTS.read_text("utf-8"), re.MULTILINE)


def test_alerts_use_metrics_that_exist() -> None:
    queries = "\n".join(expressions())
    assert len(expressions()) == len(FIRES)
    assert metrics_in(queries) <= exposed()
    assert all(metrics_in(each) or "up{" in each for each in expressions())


def test_the_dashboard_uses_metrics_that_exist() -> None:
    """And nearly all of them; its panels do not overlap."""
    dashboard = json.loads(DASHBOARD.read_text("utf-8"))
    panels = dashboard["panels"]
    used = metrics_in("\n".join(queries_of(dashboard)))
    assert used <= exposed()
    base = {re.sub("_(bucket|sum|count)$", "", each) for each in exposed()}
    shown = {re.sub("_(bucket|sum|count)$", "", each) for each in used}
    alarms = {each for each in base if each.endswith(("_alarm", "_timeout_seconds"))}
    assert base - shown - alarms == {"sluice_job_info", "sluice_query_batches_total"}
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in panels]
    assert len(set(places)) == len(panels) == len({each["id"] for each in panels})
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)


def test_each_alert_has_a_severity_a_summary_and_an_action() -> None:
    rules = ALERTS.read_text("utf-8").split("- alert: ")[1:]
    for rule in rules:
        assert re.search(r"severity: (critical|warning)\n", rule), rule
        assert "summary: " in rule, rule
        assert "action: " in rule, rule


def test_the_guide_has_a_row_for_each_alert() -> None:
    page = OPERATE.read_text("utf-8")
    assert set(re.findall(r"^\| `(Sluice\w+)` \|", page, re.MULTILINE)) == set(FIRES)
    assert names_in(ALERTS.read_text("utf-8")) == set(FIRES)


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        [program("promtool"), *arguments], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", str(ALERTS))


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "quiet"])
def test_each_alert_fires_when_it_must_and_not_before(tmp_path: Path, fires: bool) -> None:
    severities = dict(
        re.findall(r"- alert: (\w+)\n.*?severity: (\w+)", ALERTS.read_text("utf-8"), re.DOTALL)
    )

    def case(name: str) -> Mapping[str, Any]:
        series, values, labels = FIRES[name]
        parts = [f'alertname="{name}"', 'alertstate="firing"', f'severity="{severities[name]}"']
        sample = f"ALERTS{{{','.join([*parts, labels] if labels else parts)}}}"
        return {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": series, "values": values}],
            "promql_expr_test": [
                {
                    "expr": f'ALERTS{{alertstate="firing",alertname="{name}"}}',
                    "eval_time": "30m",
                    "exp_samples": [{"labels": sample, "value": 1}],
                }
            ],
        }

    quiet = {
        "name": "quiet",
        "interval": "1m",
        "input_series": [{"series": series, "values": values} for series, values in QUIET.items()],
        "promql_expr_test": [{"expr": "ALERTS", "eval_time": "30m", "exp_samples": []}],
    }
    tests = [case(name) for name in FIRES] if fires else [quiet]
    file = tmp_path / "tests.yaml"  # JSON is YAML
    file.write_text(
        json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests})
    )
    promtool("test", "rules", str(file))
