module github.com/squall-sre/squall

go 1.26
