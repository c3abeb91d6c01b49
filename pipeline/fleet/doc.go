// Package fleet carries what nodes count to those who add it up, over NATS JetStream.
//
// A node keeps what it has to tell in a ring on its own disk (Outgoing) until the stream has it, so that a partition
// or a server that is away costs nothing. An aggregator reads the stream in its order, from any place (Follow), and
// tells the nodes that it hears them (Tell, Listen). What is carried are opaque bytes of at most MaxPayload.
//
// Whatever goes wrong on the network is waited for, never an error of the caller's: detection goes on without it.
// Whoever has the rights of one node can hurt what that node says and nothing else; see User for what those rights are.
package fleet
