//go:build torture

package main

import "time"

// torture is how hard the torture tests are on squall when they have the time (make torture).
var torture = tortureScale{kills: 50, storm: 10 * time.Minute, pane: "10s", damages: len(damages), behind: 4 * time.Second}
