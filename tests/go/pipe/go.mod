module kafka-throttle/tests/go/pipe

go 1.19

require (
	github.com/twmb/franz-go v1.15.0
)

require (
	github.com/klauspost/compress v1.17.0 // indirect
	github.com/pierrec/lz4/v4 v4.1.18 // indirect
	github.com/twmb/franz-go/pkg/kmsg v1.6.1 // indirect
	golang.org/x/crypto v0.13.0 // indirect
)
