package format

import "github.com/squall-sre/squall/pipeline"

// A builder makes a format, as the table of kinds asks for it.
type builder = func(Config) (pipeline.Format, error)

// family makes a format of a program that logs JSON or, by another setting, text: what a line is, its first byte
// tells. Several forms of text are tried, the one of the line before first.
func family(object builder, texts ...builder) builder {
	return func(cfg Config) (pipeline.Format, error) {
		f := &variants{}
		var err error
		if f.object, err = object(cfg); err != nil {
			return nil, err
		}
		for _, newText := range texts {
			t, err := newText(cfg)
			if err != nil {
				return nil, err
			}
			f.texts = append(f.texts, t)
		}
		return f, nil
	}
}

type variants struct {
	object pipeline.Format
	texts  []pipeline.Format
	last   int // the text that fitted the line before
}

// Parse hands the line to the variant that reads it.
func (f *variants) Parse(line []byte, item *pipeline.Item) {
	if trimmed, _ := trimLine(line); len(f.texts) == 0 || len(trimmed) > 0 && trimmed[0] == '{' {
		f.object.Parse(line, item)
		return
	}
	f.texts[f.last].Parse(line, item)
	if item.Kind != pipeline.Failed || item.Reason == pipeline.ReasonEmpty {
		return
	}
	reason, column := item.Reason, item.Column
	for i, v := range f.texts {
		if i == f.last {
			continue
		}
		again(item)
		v.Parse(line, item)
		if item.Kind != pipeline.Failed {
			f.last = i
			return
		}
		if item.Column > column || item.Column == column && item.Reason == pipeline.ReasonTruncated {
			reason, column = item.Reason, item.Column
		}
	}
	again(item)
	fail(item, reason, column)
}
