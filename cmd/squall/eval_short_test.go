//go:build !eval

package main

// evaluated is how much TestEvaluation looks at: a little of it, in every run of the tests.
var evaluated = evaluationScale{storms: 3, days: 2, rate: 0.4}
