package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/squall-sre/squall/pipeline/loki/lokitest"
)

// logQL is what a query of LogQL reads: the part of the language that the dashboards and the alerts use.
type logQL struct {
	filters []logFilter
	by      []string // labels of groupings
	unwrap  string
}

// logFilter is a matcher of the selector, or a filter behind it.
type logFilter struct{ name, op, value string }

// parseLogQL reads a query strictly; what it does not know is a fault.
func parseLogQL(text string) (q logQL, err error) {
	p := &logParser{text: text, q: &q}
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("%s: %v at byte %d", text, fault, p.at)
		}
	}()
	p.expression()
	if p.space(); p.at < len(p.text) {
		panic("something follows")
	}
	return q, nil
}

type logParser struct {
	text string
	at   int
	q    *logQL
}

func (p *logParser) space() {
	for p.at < len(p.text) && unicode.IsSpace(rune(p.text[p.at])) {
		p.at++
	}
}

func (p *logParser) next(what string) bool {
	p.space()
	if !strings.HasPrefix(p.text[p.at:], what) {
		return false
	}
	p.at += len(what)
	return true
}

func (p *logParser) want(what string) {
	if !p.next(what) {
		panic("no " + what)
	}
}

var (
	logWord   = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*`)
	logNumber = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?`)
	logRange  = regexp.MustCompile(`^\[(\$__auto|\$__range|[0-9]+[smhd])\]`)
	logString = regexp.MustCompile(`^"(?:[^"\\]|\\.)*"`)
)

func (p *logParser) take(r *regexp.Regexp) string {
	p.space()
	found := r.FindString(p.text[p.at:])
	if found == "" {
		panic("no " + r.String())
	}
	p.at += len(found)
	return found
}

// expression is an aggregation, or the lines themselves.
func (p *logParser) expression() {
	if p.space(); p.at < len(p.text) && p.text[p.at] == '{' {
		p.lines()
		return
	}
	name := p.take(logWord)
	switch name {
	case "sum", "max", "topk":
		p.grouping()
		p.want("(")
		if name == "topk" {
			p.take(logNumber)
			p.want(",")
		}
		p.expression()
	case "count_over_time", "sum_over_time", "quantile_over_time":
		p.want("(")
		if name == "quantile_over_time" {
			p.take(logNumber)
			p.want(",")
		}
		p.lines()
		p.take(logRange)
		if (name == "count_over_time") != (p.q.unwrap == "") {
			panic(name + " and unwrap do not fit")
		}
	default:
		panic(name + " is unknown")
	}
	p.want(")")
	p.grouping()
}

func (p *logParser) grouping() {
	if !p.next("by") {
		return
	}
	for p.want("("); ; p.want(",") {
		p.q.by = append(p.q.by, p.take(logWord))
		if p.next(")") {
			return
		}
	}
}

// lines is a selector and what is behind it.
func (p *logParser) lines() {
	for p.want("{"); ; p.want(",") {
		p.filter("=~", "!~", "!=", "=")
		if p.next("}") {
			break
		}
	}
	for p.next("|") {
		if p.next("unwrap ") {
			p.q.unwrap = p.take(logWord)
			continue
		}
		p.filter("=~", "!~", "!=", ">=", "<=", "=", ">", "<")
	}
}

func (p *logParser) filter(ops ...string) {
	f := logFilter{name: p.take(logWord)}
	i := slices.IndexFunc(ops, p.next)
	if i < 0 {
		panic("no operator")
	}
	if f.op = ops[i]; slices.Contains([]string{">=", "<=", ">", "<"}, f.op) {
		f.value = p.take(logNumber)
	} else {
		text, err := strconv.Unquote(p.take(logString))
		if err != nil {
			panic(err)
		}
		f.value = text
	}
	p.q.filters = append(p.q.filters, f)
}

var shippedLabel = regexp.MustCompile(`([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"`)

// fieldsOf gives what Loki knows of a line: its labels and its structured metadata.
func fieldsOf(t *testing.T, e lokitest.Entry) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range shippedLabel.FindAllStringSubmatch(e.Labels, -1) {
		value, err := strconv.Unquote(`"` + m[2] + `"`)
		if err != nil {
			t.Fatal(err)
		}
		out[m[1]] = value
	}
	for name, value := range e.Metadata {
		out[name] = value
	}
	return out
}

func (f logFilter) holds(t *testing.T, fields map[string]string) bool {
	t.Helper()
	is := fields[f.name]
	switch f.op {
	case "=", "!=":
		return (is == f.value) == (f.op == "=")
	case "=~", "!~":
		return regexp.MustCompile("^(?:"+f.value+")$").MatchString(is) == (f.op == "=~")
	}
	number, err := strconv.ParseFloat(is, 64)
	limit, err2 := strconv.ParseFloat(f.value, 64)
	if err2 != nil {
		t.Fatal(err2)
	}
	switch {
	case err != nil:
		return false // Loki drops what is no number
	case f.op == ">=":
		return number >= limit
	case f.op == "<=":
		return number <= limit
	case f.op == ">":
		return number > limit
	}
	return number < limit
}

// finds tells which lines a query reads, and whether its groupings and its unwrapping find what they name in some.
func (q logQL) finds(t *testing.T, shipped []map[string]string) (n int, missing []string) {
	t.Helper()
	missing = slices.Clone(q.by)
	if q.unwrap != "" {
		missing = append(missing, q.unwrap)
	}
	for _, fields := range shipped {
		if slices.ContainsFunc(q.filters, func(f logFilter) bool { return !f.holds(t, fields) }) {
			continue
		}
		n++
		missing = slices.DeleteFunc(missing, func(name string) bool {
			value, there := fields[name]
			if name == q.unwrap && there {
				_, err := strconv.ParseFloat(value, 64)
				return err == nil
			}
			return there
		})
	}
	return n, missing
}

func TestLogQLIsReadStrictly(t *testing.T) {
	good := "topk(10, sum by (method, route) (sum_over_time({job=\"squall\", site=~\"a|b\"} | method!=\"\" | request_time >= 5 | unwrap request_time [$__range])))"
	q, err := parseLogQL(good)
	if err != nil || len(q.filters) != 4 || len(q.by) != 2 || q.unwrap != "request_time" {
		t.Errorf("%+v %v", q, err)
	}
	for _, bad := range []string{
		"", "{}", `{a="b"`, `{a="b"} trailing`, `{a="b"} | c`, `rate({a="b"}[5m])`, `count_over_time({a="b"})`, `sum by () (count_over_time({a="b"}[5m]))`,
		`sum(count_over_time({a="b"} | unwrap c [5m]))`, `sum_over_time({a="b"}[5m])`, `{a="b"} | c > "5"`, `{a>5}`,
	} {
		if _, err := parseLogQL(bad); err == nil {
			t.Errorf("%s is read", bad)
		}
	}
	shipped := []map[string]string{
		{"job": "squall", "site": "a", "method": "GET", "route": "/", "request_time": "7"},
		{"job": "squall", "site": "a", "method": "GET", "route": "/", "request_time": "3"},
		{"job": "squall", "site": "abc", "method": "GET", "route": "/", "request_time": "7"},
	}
	if n, missing := q.finds(t, shipped); n != 1 || len(missing) != 0 {
		t.Errorf("%d lines, %q missing", n, missing)
	}
	q.by = append(q.by, "rout")
	if _, missing := q.finds(t, shipped); len(missing) != 1 {
		t.Errorf("%q missing", missing)
	}
}
