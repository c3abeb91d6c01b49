package report

import (
	"io"

	"github.com/squall-sre/squall/alerts"
)

// WriteJSON writes the report as one indented JSON object. Equal reports give equal bytes; names carry units
// (_seconds, _per_minute, _ratio and _share from 0 to 1), times are RFC 3339 in UTC, and what is not known is absent or
// null. Text from log lines stands as it was logged, with every character escaped that could change how it is shown.
func (r *Report) WriteJSON(w io.Writer) error {
	b, err := alerts.AppendJSONDocument(nil, r)
	if err != nil {
		return err
	}
	_, err = w.Write(b)
	return err
}
