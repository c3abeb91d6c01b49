package grafana

import (
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// ours is a metric of the selected instances.
func ours(metric, matchers string) string {
	if matchers != "" {
		matchers = ", " + matchers
	}
	return metric + `{instance=~"$instance"` + matchers + `}`
}

// flow is a counter's rate, by labels.
func flow(metric, by string) string {
	return "sum by (" + by + ") (rate(" + ours(metric, "") + "[$__rate_interval]))"
}

// pipeline is squall's own health: what it reads, keeps, ships and tells, and what it lost.
func pipeline() *dashboard.DashboardBuilder {
	b := board("squall-pipeline", "Pipeline health", "Whether squall itself sees, keeps and tells. Nothing here depends on Loki.", "instance", "squall_panes_closed_total").
		WithPanel(number("Instances", units.Short, "That are scraped.", prom("count("+ours("squall_panes_closed_total", "")+")", ""))).
		WithPanel(number("Event time behind", units.Seconds, "Between now and the end of the last pane that was evaluated, of the instance furthest behind. S3 deliveries alone are ten minutes late.",
			prom("max(time() - "+ours("squall_watermark_timestamp_seconds", "")+")", ""), step{120, "orange"}, step{900, "red"})).
		WithPanel(number("Lines lost", units.Short, "Read, and neither shipped nor spooled, in the time range.",
			prom("sum(increase("+ours("squall_lines_lost_total", "")+"[$__range]))", ""), step{1, "red"})).
		WithPanel(number("Gaps", units.Short, "Places where lines were gone before they could be read, in the time range.",
			prom("sum(increase("+ours("squall_gaps_total", "")+"[$__range]))", ""), step{1, "orange"})).
		WithPanel(number("Blind", units.Short, "Sources of which files are missing, unreadable or fit no format: no alert is no quiet day there.",
			prom("count("+ours("squall_source_files", `state=~"missing|unreadable|no file matches|fits no format"`)+" > 0) or vector(0)", ""), step{1, "red"})).
		WithPanel(number("Configuration", units.Short, "1: the last load succeeded.", prom("min("+ours("squall_config_last_reload_successful", "")+")", "")))
	return notifying(shipping(reading(b)))
}

func reading(b *dashboard.DashboardBuilder) *dashboard.DashboardBuilder {
	return b.WithRow(row("Reading")).
		WithPanel(graph("Lines a second by source", units.Short, "", prom(flow("squall_lines_read_total", "source"), "{{source}}"))).
		WithPanel(graph("Lines not detected, a second", units.Short, "Shipped all the same.",
			prom(flow("squall_lines_failed_total", "source, reason"), "{{source}} fits no format: {{reason}}"),
			prom(flow("squall_lines_late_total", "source"), "{{source}} too late"))).
		WithPanel(graph("Unread", units.BytesIEC, "Bytes known to be unread.", prom("sum by (source) ("+ours("squall_source_lag_bytes", "")+")", "{{source}}"))).
		WithPanel(graph("Behind", units.Seconds, "Age of the last line read of the file that is furthest behind.",
			prom("max by (source) ("+ours("squall_source_lag_seconds", "")+")", "{{source}}"))).
		WithPanel(stacked("Files by state", units.Short, "", prom("sum by (state) ("+ours("squall_source_files", "")+")", "{{state}}"))).
		WithPanel(graph("Errors of sources, a second", units.Short, "Each is retried.", prom(flow("squall_source_errors_total", "source, reason"), "{{source}} {{reason}}")))
}

func shipping(b *dashboard.DashboardBuilder) *dashboard.DashboardBuilder {
	return b.WithRow(row("Keeping and shipping")).
		WithPanel(graph("Lines that wait to be shipped", units.Short, "In the spool, on disk.", prom("sum by (instance) ("+ours("squall_spool_waiting_lines", "")+")", "{{instance}}"))).
		WithPanel(graph("Spool", units.BytesIEC, "On disk, and what waits in memory to be stored.",
			prom("sum by (instance) ("+ours("squall_spool_stream_bytes", "")+")", "{{instance}} on disk"),
			prom("sum by (instance) ("+ours("squall_spool_queue_bytes", "")+")", "{{instance}} queued"))).
		WithPanel(graph("Lag of Loki", units.Seconds, "How long the lines that were shipped last had been in the spool.",
			prom("max by (instance) ("+ours("squall_loki_lag_seconds", "")+")", "{{instance}}"))).
		WithPanel(graph("Lines shipped and refused, a second", units.Short, "Refused ones are in the dead-letter file.",
			prom(flow("squall_lines_shipped_total", "instance"), "{{instance}} shipped"),
			prom(flow("squall_lines_refused_total", "reason"), "refused: {{reason}}"))).
		WithPanel(graph("Pushes repeated, a second", units.Short, "By what Loki's answer meant.", prom(flow("squall_loki_retries_total", "answer"), "{{answer}}"))).
		WithPanel(graph("Lines lost, a second", units.Short, "By reason. Zero is the promise.", prom(flow("squall_lines_lost_total", "reason"), "{{reason}}")))
}

func notifying(b *dashboard.DashboardBuilder) *dashboard.DashboardBuilder {
	return b.WithRow(row("Telling")).
		WithPanel(graph("Owed to receivers", units.Short, "Beginnings and ends of alerts that a receiver was not told yet.",
			prom("sum by (notifier) ("+ours("squall_notify_owed_alerts", "")+")", "{{notifier}}"))).
		WithPanel(graph("Failed attempts to tell, a second", units.Short, "", prom(flow("squall_notify_failures_total", "notifier, reason"), "{{notifier}} {{reason}}"))).
		WithRow(row("The process")).
		WithPanel(graph("Memory", units.BytesIEC, "Resident.", prom(ours("process_resident_memory_bytes", "")+" and on (instance) squall_panes_closed_total", "{{instance}}"))).
		WithPanel(graph("Processors", units.Short, "Seconds of processor time a second.",
			prom("rate("+ours("process_cpu_seconds_total", "")+"[$__rate_interval]) and on (instance) squall_panes_closed_total", "{{instance}}")))
}
