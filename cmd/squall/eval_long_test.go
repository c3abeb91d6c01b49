//go:build eval

package main

// evaluated is how much TestEvaluation looks at when it has the time (make eval).
var evaluated = evaluationScale{storms: 200, days: 30}
