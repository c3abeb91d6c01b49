// Package grafana makes squall's dashboards: what is being hurt, the storm, what the origin pays, restarts and
// probes, the layers in front, and squall's own health. `make dashboards` writes them as JSON; squall's binary
// knows nothing of this package.
package grafana

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/grafana/grafana-foundation-sdk/go/bargauge"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/logs"
	"github.com/grafana/grafana-foundation-sdk/go/loki"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/statetimeline"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// tag marks all dashboards: each links to those that have it.
const tag = "squall"

// JSON gives each dashboard as Grafana reads it, by its uid. The uids are stable: alerts link to them.
func JSON() (map[string][]byte, error) {
	out := map[string][]byte{}
	for _, make := range []func() *dashboard.DashboardBuilder{overview, storm, origin, restarts, layers, pipeline} {
		d, err := make().Build()
		if err != nil {
			return nil, err
		}
		if d.Uid == nil || out[*d.Uid] != nil {
			return nil, errors.New("a dashboard has no uid of its own")
		}
		var text bytes.Buffer
		e := json.NewEncoder(&text)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(d); err != nil {
			return nil, fmt.Errorf("dashboard %s: %w", *d.Uid, err)
		}
		out[*d.Uid] = text.Bytes()
	}
	return out, nil
}

// The variables that name the data sources, so that the dashboards work with those of any Grafana.
const (
	metricsSource = "DS_PROMETHEUS"
	linesSource   = "DS_LOKI"
)

func sourceRef(kind, variable string) common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr(kind), Uid: cog.ToPtr("${" + variable + "}")}
}

// board begins a dashboard with what all have. over is the query variable that selects what is shown: site or instance.
func board(uid, title, description, over, metric string) *dashboard.DashboardBuilder {
	return dashboard.NewDashboardBuilder("squall / "+title).
		Uid(uid).Description(description).Tags([]string{tag}).
		Time("now-1h", "now").Refresh("30s").Timezone(common.TimeZoneBrowser).
		Tooltip(dashboard.DashboardCursorSyncCrosshair).Editable().
		WithVariable(dashboard.NewDatasourceVariableBuilder(metricsSource).Label("Prometheus").Type("prometheus")).
		WithVariable(dashboard.NewDatasourceVariableBuilder(linesSource).Label("Loki").Type("loki")).
		WithVariable(dashboard.NewQueryVariableBuilder(over).Label(over).
			Datasource(sourceRef("prometheus", metricsSource)).
			Query(dashboard.StringOrMap{String: cog.ToPtr("label_values(" + metric + ", " + over + ")")}).
			Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Sort(dashboard.VariableSortAlphabeticalAsc).
			Multi(true).IncludeAll(true).AllValue(".*").
			Current(dashboard.VariableOption{
				Text:  dashboard.StringOrArrayOfString{String: cog.ToPtr("All")},
				Value: dashboard.StringOrArrayOfString{String: cog.ToPtr("$__all")},
			})).
		Annotation(incidents("Pages", "page", "red")).
		Annotation(incidents("Warnings", "warning", "orange")).
		Link(dashboard.NewDashboardLinkBuilder("squall").Type(dashboard.DashboardLinkTypeDashboards).
			Tags([]string{tag}).AsDropdown(true).IncludeVars(true).KeepTime(true))
}

// incidents marks when alerts of squall fired, from the first sample to the last.
func incidents(name, severity, colour string) *dashboard.AnnotationQueryBuilder {
	return dashboard.NewAnnotationQueryBuilder().Name(name).Enable(true).IconColor(colour).
		Datasource(sourceRef("prometheus", metricsSource)).
		Expr(`max by (alertname, severity, site, cluster) (squall_alert_firing{severity="` + severity + `"})`).
		TitleFormat("{{alertname}}").TextFormat("{{site}} {{cluster}}").TagKeys("severity,site")
}

// A query is one line of a panel.
type query struct {
	expr, legend string
	lines        bool // of Loki
}

// prom asks Prometheus.
func prom(expr, legend string) query { return query{expr: expr, legend: legend} }

// lines asks Loki.
func lines(expr, legend string) query { return query{expr: expr, legend: legend, lines: true} }

func (q query) target(i int, instant bool) cog.Builder[variants.Dataquery] {
	ref := string(rune('A' + i))
	if q.lines {
		kind := "range"
		if instant {
			kind = "instant"
		}
		return loki.NewDataqueryBuilder().RefId(ref).Expr(q.expr).LegendFormat(q.legend).QueryType(kind).
			Datasource(sourceRef("loki", linesSource))
	}
	b := prometheus.NewDataqueryBuilder().RefId(ref).Expr(q.expr).LegendFormat(q.legend).
		Datasource(sourceRef("prometheus", metricsSource))
	if instant {
		return b.Instant()
	}
	return b.Range()
}

// source is that of a panel's queries: they are all of one kind.
func source(queries []query) common.DataSourceRef {
	if queries[0].lines {
		return sourceRef("loki", linesSource)
	}
	return sourceRef("prometheus", metricsSource)
}

const (
	panelHeight = 8
	statHeight  = 4
	third       = 8 // of the 24 columns
	half        = 12
	full        = 24
)

// graph shows queries over time.
func graph(title, unit, description string, queries ...query) *timeseries.PanelBuilder {
	p := timeseries.NewPanelBuilder().Title(title).Description(description).Unit(unit).Min(0).
		Datasource(source(queries)).Height(panelHeight).Span(half).
		LineWidth(1).FillOpacity(10).ShowPoints(common.VisibilityModeNever).
		Legend(common.NewVizLegendOptionsBuilder().ShowLegend(true).DisplayMode(common.LegendDisplayModeTable).
			Placement(common.LegendPlacementBottom).Calcs([]string{"max", "lastNotNull"})).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti).Sort(common.SortOrderDescending))
	for i, q := range queries {
		p.WithTarget(q.target(i, false))
	}
	return p
}

// stacked is a graph of parts of a whole.
func stacked(title, unit, description string, queries ...query) *timeseries.PanelBuilder {
	return graph(title, unit, description, queries...).FillOpacity(40).
		Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal).Group("A"))
}

// step is where a number becomes worth looking at.
type step struct {
	from   float64
	colour string
}

// number shows the last value of one query; it is green below the steps.
func number(title, unit, description string, q query, steps ...step) *stat.PanelBuilder {
	colours := []dashboard.Threshold{{Value: nil, Color: "green"}}
	for _, s := range steps {
		colours = append(colours, dashboard.Threshold{Value: cog.ToPtr(s.from), Color: s.colour})
	}
	return stat.NewPanelBuilder().Title(title).Description(description).Unit(unit).
		Datasource(source([]query{q})).Height(statHeight).Span(4).
		ColorMode(common.BigValueColorModeBackground).GraphMode(common.BigValueGraphModeArea).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps(colours)).
		WithTarget(q.target(0, false))
}

// ranking shows the greatest of something over the whole time range.
func ranking(title, unit, description string, q query) *bargauge.PanelBuilder {
	return bargauge.NewPanelBuilder().Title(title).Description(description).Unit(unit).Min(0).
		Datasource(source([]query{q})).Height(panelHeight).Span(half).
		Orientation(common.VizOrientationHorizontal).DisplayMode(common.BarGaugeDisplayModeGradient).
		ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"})).
		WithTarget(q.target(0, true))
}

// timeline shows when what was on.
func timeline(title, description string, q query) *statetimeline.PanelBuilder {
	return statetimeline.NewPanelBuilder().Title(title).Description(description).Unit(units.Short).
		Datasource(source([]query{q})).Height(panelHeight).Span(full).
		ShowValue(common.VisibilityModeNever).FillOpacity(80).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).Steps([]dashboard.Threshold{
			{Value: nil, Color: "transparent"}, {Value: cog.ToPtr(1.0), Color: "red"},
		})).
		WithTarget(q.target(0, false))
}

// excerpt shows lines of the log.
func excerpt(title, description, expr string) *logs.PanelBuilder {
	return logs.NewPanelBuilder().Title(title).Description(description).
		Datasource(sourceRef("loki", linesSource)).Height(10).Span(full).
		ShowTime(true).EnableLogDetails(true).SortOrder(common.LogsSortOrderDescending).
		WithTarget(lines(expr, "").target(0, false))
}

// row begins a part of a dashboard.
func row(title string) *dashboard.RowBuilder { return dashboard.NewRowBuilder(title) }
