package main

// toldIncident is an incident as a transcript tells it.
type toldIncident struct {
	ID      string `json:"id"`
	Members []struct {
		Detector string `json:"detector"`
		After    string `json:"after"`
		Because  string `json:"because"`
	} `json:"members"`
	Apart []struct {
		ID      string `json:"id"`
		Because string `json:"because"`
	} `json:"apart"`
}

// after is what a detector's detection followed from.
func (in toldIncident) after(detector string) string {
	for _, m := range in.Members {
		if m.Detector == detector {
			return m.After
		}
	}
	return "no " + detector
}

// apart is why another incident was not merged with it.
func (in toldIncident) apart(id string) string {
	for _, a := range in.Apart {
		if a.ID == id {
			return a.Because
		}
	}
	return ""
}
