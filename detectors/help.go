package detectors

import (
	"fmt"
	"reflect"
	"strings"
)

// Help is what is to be known of a detector besides its code, for who was woken by it.
type Help struct {
	Watches        string   // what it looks at
	Formula        string   // when it fires, in the names of its settings
	Evidence       []string // the fields of Evidence that matter
	FalsePositives []string // what else may look so, and what it does not see
	Runbook        []string // what to check next, with commands
}

// A Default is a setting with the value that it has without configuration.
type Default struct{ Name, Value string }

// HelpFor gives the help of a detector and its settings with their defaults.
func HelpFor(name string) (Help, []Default, error) {
	d, err := New(name, nil)
	if err != nil {
		return Help{}, nil, err
	}
	var settings []Default
	v := reflect.ValueOf(d).Elem()
	for i := range v.NumField() {
		if key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("yaml"), ","); key != "" {
			settings = append(settings, Default{key, fmt.Sprint(readable(v.Field(i)))})
		}
	}
	return d.Help(), settings, nil
}

// readable is the value of a setting: a duration in its own words.
func readable(v reflect.Value) any {
	if s, ok := reflect.TypeAssert[fmt.Stringer](v); ok {
		return s.String()
	}
	switch v.Kind() {
	case reflect.Float64:
		return v.Float()
	case reflect.Int, reflect.Int64:
		return v.Int()
	}
	return v.String()
}
