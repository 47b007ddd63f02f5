// Reads Kubernetes manifests from standard input, and decodes each into its type as Kubernetes and the Prometheus
// Operator have it. Prints the kind of each; a field that the type does not have, and a field of another type, is an
// error. Values of fields are not looked at.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

func main() {
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		fail(err)
	}
	options := json.SerializerOptions{Yaml: true, Strict: true}
	strict := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme.Scheme, scheme.Scheme, options)
	reader := yaml.NewYAMLReader(bufio.NewReader(os.Stdin))
	for {
		document, err := reader.Read()
		if err == io.EOF {
			return
		}
		if err != nil {
			fail(err)
		}
		if onlyComments(document) {
			continue
		}
		_, kind, err := strict.Decode(document, nil, nil)
		if err != nil {
			fail(fmt.Errorf("%w\n%s", err, document))
		}
		fmt.Println(kind.Kind)
	}
}

func onlyComments(document []byte) bool {
	for _, line := range bytes.Split(document, []byte("\n")) {
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' && !bytes.Equal(line, []byte("---")) {
			return false
		}
	}
	return true
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
