package proatest_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"proa/pkg/proatest"
)

func ExampleStart() {
	// In a test of your own, t is the one that the test function is given.
	test := func(t *testing.T) {
		access := proatest.Start(t, proatest.Options{Controllers: []string{"*"}})
		api := kubernetes.NewForConfigOrDie(access)
		namespaces, err := api.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(namespaces.Items) == 0 {
			t.Fatalf("%d namespaces: %v", len(namespaces.Items), err)
		}
	}
	_ = test
}
