package format

import "github.com/squall-sre/squall/pipeline"

// newKubernetes reads what the source kubernetes writes: Events, and what a Pod's status tells of restarts.
func newKubernetes(cfg Config) (pipeline.Format, error) {
	events, err := newK8sEvent(cfg)
	if err != nil {
		return nil, err
	}
	pods, err := newPodStatus(cfg)
	return &kubernetes{events, pods}, err
}

type kubernetes struct{ events, pods pipeline.Format }

// Parse tries a Pod's status on what is no Event.
func (f *kubernetes) Parse(line []byte, item *pipeline.Item) {
	f.events.Parse(line, item)
	if item.Kind == pipeline.Failed && item.Reason == pipeline.ReasonNotAccess {
		again(item)
		f.pods.Parse(line, item)
	}
}
