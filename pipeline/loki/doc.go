// Package loki ships what the spool keeps to a Loki server.
//
// A push is repeated with identical bytes until Loki has it; only then is the spool told. What Loki refuses is
// told apart from what it cannot take now: see answer.go. Nothing here can hold up reading or detecting; a
// server that is away makes the spool longer, and that is all.
package loki
