package main

import (
	"bytes"
	"encoding/json"
	"net/http"

	"github.com/squall-sre/squall/alerts"
	"github.com/squall-sre/squall/pipeline"
)

// alerts answers {"alerts":[…]}, each alert as `squall replay --json` writes it.
func (c webServerConfig) alerts(w http.ResponseWriter, _ *http.Request) {
	out := []byte(`{"alerts":[`)
	list := c.State.Alerts()
	for i := range list {
		if i > 0 {
			out = append(out, ',')
		}
		out = bytes.TrimSuffix(alerts.AppendJSON(out, &list[i]), []byte("\n"))
	}
	writeJSON(w, append(out, "]}\n"...))
}

// inputJSON is one stream or path of a source.
type inputJSON struct {
	Source   string `json:"source"`
	Path     string `json:"path"`
	State    string `json:"state"`
	Error    string `json:"error,omitempty"`
	LagBytes int64  `json:"lag_bytes"`
}

func inputsJSON(states []pipeline.InputState) []inputJSON {
	out := make([]inputJSON, len(states))
	for i, s := range states {
		// A file's name may come from whoever writes to a log directory: it is shown, never interpreted.
		out[i] = inputJSON{alerts.Escape(s.Input), alerts.Escape(s.Path), s.State, alerts.Escape(s.Err), s.Lag}
	}
	return out
}

// sources answers {"sources":[…]}.
func (c webServerConfig) sources(w http.ResponseWriter, _ *http.Request) {
	out, err := json.Marshal(map[string]any{"sources": inputsJSON(c.State.Sources())})
	if err != nil {
		say(w, http.StatusInternalServerError, err.Error())
		return
	}
	writeJSON(w, append(out, '\n'))
}

func writeJSON(w http.ResponseWriter, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the client has left: nobody is to be told
}
