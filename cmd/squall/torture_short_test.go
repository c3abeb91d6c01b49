//go:build !torture

package main

import "time"

// torture is how hard the torture tests are on squall when they run with all others.
var torture = tortureScale{kills: 5, storm: 12 * time.Second, pane: "5s", damages: 3, behind: 30 * time.Second}
