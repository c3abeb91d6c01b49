// Package spool keeps the lines on disk between reading and shipping: it is the queue before Loki, the
// retention store where there is no Loki, and the place where each stream's position is known.
//
// The store is a NATS JetStream server inside the process, with no listener, file storage and a sync for every
// message. A message of the stream LINES carries the batches of one or more log streams, as frame.go
// describes; its order is guarded by the expected sequence, so that a refused message can never be overtaken
// by the next one of the same log stream. Positions follow from what is stored: a checkpoint of all positions is written from
// time to time, and what was stored after it is read at start. A position is therefore never ahead of the lines.
package spool
