// Package pipeline turns the lines of balancers, ingresses and kubelets into Records and Events.
//
// It owns these two nouns, the contracts that the kinds fill (Source, Framer, Format, Enricher) and the road
// itself: a Source reads a Block of lines, a Framer undoes what a container runtime wrapped around them, a
// Format parses each line into an Item, Enrichers add what squall knows about it, and the Batch goes to the
// detectors and to the spool. The kinds live in the folders below and import this package alone.
package pipeline
