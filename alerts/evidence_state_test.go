package alerts

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/squall-sre/squall/detectors"
)

// setAll sets everything in v to something that is not its zero value.
func setAll(t *testing.T, v reflect.Value) {
	t.Helper()
	if v.Type() == reflect.TypeFor[detectors.Num]() {
		v.Set(reflect.ValueOf(detectors.N(1.5)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7)
	case reflect.Float64:
		v.SetFloat(2.5)
	case reflect.Struct:
		for i := range v.NumField() {
			setAll(t, v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		setAll(t, v.Index(0))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		setAll(t, v.Elem())
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		setAll(t, key)
		setAll(t, value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	default:
		t.Fatalf("a %s in the evidence", v.Type())
	}
}

// Whatever is added to the evidence is there after a restart.
func TestStateKeepsAllEvidence(t *testing.T) {
	var want detectors.Evidence
	setAll(t, reflect.ValueOf(&want).Elem())
	text, err := json.Marshal(storeEvidence(want))
	if err != nil {
		t.Fatal(err)
	}
	var stored storedEvidence
	if err := json.Unmarshal(text, &stored); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, loadEvidence(stored), cmp.AllowUnexported(detectors.Num{})); diff != "" {
		t.Error(diff)
	}
}
