package job_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"proa/internal/client"
	"proa/internal/controllers"
	"proa/internal/controllers/controllertest"
	"proa/internal/controllers/job"
)

func start(w *controllertest.World) func() {
	return w.Start(func(c controllers.Config) []controllertest.Runner {
		return []controllertest.Runner{job.New(c)}
	})
}

func work(completions, parallelism int32, change ...func(*batchv1.JobSpec)) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
		Spec: batchv1.JobSpec{
			Completions: &completions, Parallelism: &parallelism,
			Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Containers:    []corev1.Container{{Name: "c", Image: "one"}},
			}},
		},
	}
	for _, f := range change {
		f(&j.Spec)
	}
	return j
}

func indexed(s *batchv1.JobSpec) { s.CompletionMode = new(batchv1.IndexedCompletion) }

// end ends every active pod: exit says with which code, below zero for not yet.
// It waits out backoffs and repeats until nothing is left to do.
func end(w *controllertest.World, exit func(*corev1.Pod) int32) {
	w.T.Helper()
	for range 100 {
		changed := w.RunPods(nil)
		for _, pod := range w.Pods("") {
			code := exit(pod)
			if pod.Status.Phase != corev1.PodRunning || code < 0 {
				continue
			}
			finish(w, pod, code)
			changed = true
		}
		if !changed {
			return
		}
		time.Sleep(15 * time.Minute)
		w.Settle()
	}
	w.T.Fatal("the job never ends")
}

func finish(w *controllertest.World, pod *corev1.Pod, code int32) {
	controllertest.ChangeStatus(w, pod.Name, func(p *corev1.Pod) {
		p.Status.Phase = corev1.PodSucceeded
		if code != 0 {
			p.Status.Phase = corev1.PodFailed
		}
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: code, FinishedAt: metav1.Now()},
		}}}
	})
}

// outcome prints conditions and counts.
func outcome(w *controllertest.World) string {
	s := controllertest.Get[*batchv1.Job](w, "work").Status
	var conditions []string
	for _, c := range s.Conditions {
		conditions = append(conditions, fmt.Sprintf("%s=%s:%s", c.Type, c.Status, c.Reason))
	}
	text := fmt.Sprintf("%s; active %d, succeeded %d, failed %d", strings.Join(conditions, " "), s.Active, s.Succeeded, s.Failed)
	if s.CompletedIndexes != "" {
		text += "; completed " + s.CompletedIndexes
	}
	if s.FailedIndexes != nil {
		text += "; failed indexes " + *s.FailedIndexes
	}
	if u := s.UncountedTerminatedPods; u == nil || len(u.Succeeded)+len(u.Failed) > 0 {
		text += fmt.Sprintf("; uncounted %v", u)
	}
	return text
}

func TestOutcomes(t *testing.T) {
	always := func(code int32) func(*corev1.Pod) int32 { return func(*corev1.Pod) int32 { return code } }
	oddFail := func(pod *corev1.Pod) int32 {
		switch pod.Annotations[batchv1.JobCompletionIndexAnnotation] {
		case "1", "3":
			return 1
		}
		return 0
	}
	only := func(index string) func(*corev1.Pod) int32 {
		return func(pod *corev1.Pod) int32 {
			if pod.Annotations[batchv1.JobCompletionIndexAnnotation] == index {
				return 0
			}
			return -1
		}
	}
	rule := func(action batchv1.PodFailurePolicyAction, code int32) func(*batchv1.JobSpec) {
		return func(s *batchv1.JobSpec) {
			s.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
				Action:      action,
				OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{code}},
			}}}
		}
	}
	tests := []struct {
		name string
		job  *batchv1.Job
		exit func(*corev1.Pod) int32
		want string
	}{
		{"completes after enough successes", work(5, 2), always(0),
			"SuccessCriteriaMet=True:CompletionsReached Complete=True:CompletionsReached; active 0, succeeded 5, failed 0"},
		{"fails beyond the backoff limit", work(1, 1, func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(2)) }), always(1),
			"FailureTarget=True:BackoffLimitExceeded Failed=True:BackoffLimitExceeded; active 0, succeeded 0, failed 3"},
		{"completes every index once", work(5, 2, indexed), always(0),
			"SuccessCriteriaMet=True:CompletionsReached Complete=True:CompletionsReached; active 0, succeeded 5, failed 0; completed 0-4"},
		{"fails at once on an exit code", work(3, 3, rule(batchv1.PodFailurePolicyActionFailJob, 42)), always(42),
			"FailureTarget=True:PodFailurePolicy Failed=True:PodFailurePolicy; active 0, succeeded 0, failed 3"},
		{"limits failures per index", work(4, 4, indexed, func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex = new(int32(1)) }), oddFail,
			"FailureTarget=True:FailedIndexes Failed=True:FailedIndexes; active 0, succeeded 2, failed 4; completed 0,2; failed indexes 1,3"},
		{"fails an index without retry", work(4, 4, indexed, rule(batchv1.PodFailurePolicyActionFailIndex, 1), func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex = new(int32(5)) }), oddFail,
			"FailureTarget=True:FailedIndexes Failed=True:FailedIndexes; active 0, succeeded 2, failed 2; completed 0,2; failed indexes 1,3"},
		{"succeeds by policy while other indexes run", work(4, 4, indexed, func(s *batchv1.JobSpec) {
			s.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: new("0,2"), SucceededCount: new(int32(1))}}}
		}), only("2"),
			"SuccessCriteriaMet=True:SuccessPolicy Complete=True:SuccessPolicy; active 0, succeeded 1, failed 0; completed 2"},
		{"stops when the first worker of a queue succeeds", work(0, 2, func(s *batchv1.JobSpec) { s.Completions = nil }), always(0),
			"SuccessCriteriaMet=True:CompletionsReached Complete=True:CompletionsReached; active 0, succeeded 2, failed 0"},
		{"does nothing with no completions to reach", work(0, 1), always(0),
			"SuccessCriteriaMet=True:CompletionsReached Complete=True:CompletionsReached; active 0, succeeded 0, failed 0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			controllertest.Run(t, func(w *controllertest.World) {
				defer start(w)()
				w.Create(tt.job)
				w.Settle()
				end(w, tt.exit)
				if got := outcome(w); got != tt.want {
					t.Errorf("\n got %s\nwant %s", got, tt.want)
				}
				for _, pod := range w.Pods("") {
					if len(pod.Finalizers) > 0 {
						t.Errorf("pod %s keeps finalizers %v", pod.Name, pod.Finalizers)
					}
				}
			})
		})
	}
}

func TestAnIndexedPodKnowsItsIndex(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(2, 1, indexed))
		w.Settle()
		pod := w.Pods("batch.kubernetes.io/job-completion-index=0")[0]
		env := pod.Spec.Containers[0].Env
		if !strings.HasPrefix(pod.Name, "work-0-") || pod.Spec.Hostname != "work-0" || len(env) != 1 || env[0].Name != "JOB_COMPLETION_INDEX" ||
			env[0].ValueFrom.FieldRef.FieldPath != "metadata.labels['batch.kubernetes.io/job-completion-index']" {
			t.Errorf("pod %s: hostname %s, env %v", pod.Name, pod.Spec.Hostname, env)
		}
	})
}

func TestASuspendedJobHasNoPodsAndStartsAnewWhenResumed(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(2, 2))
		w.Settle()
		w.RunPods(nil)
		suspend := func(v bool) func(*batchv1.Job) { return func(j *batchv1.Job) { j.Spec.Suspend = &v } }
		controllertest.Change(w, "work", suspend(true))
		w.RunPods(func(*corev1.Pod) bool { return false })
		if got := outcome(w); got != "Suspended=True:JobSuspended; active 0, succeeded 0, failed 0" {
			t.Errorf("suspended: %s", got)
		}
		if at := controllertest.Get[*batchv1.Job](w, "work").Status.StartTime; at != nil {
			t.Errorf("suspended, and started at %v", at)
		}
		time.Sleep(time.Hour)
		controllertest.Change(w, "work", suspend(false))
		j := controllertest.Get[*batchv1.Job](w, "work")
		if !strings.HasPrefix(outcome(w), "Suspended=False:JobResumed; active 2") || time.Since(j.Status.StartTime.Time) > time.Second {
			t.Errorf("resumed: %s, started at %v", outcome(w), j.Status.StartTime)
		}
	})
}

func TestADeadlineEndsTheJob(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(1, 1, func(s *batchv1.JobSpec) { s.ActiveDeadlineSeconds = new(int64(60)) }))
		w.Settle()
		w.RunPods(nil)
		time.Sleep(61 * time.Second)
		w.Settle()
		w.RunPods(nil)
		if got, want := outcome(w), "FailureTarget=True:DeadlineExceeded Failed=True:DeadlineExceeded; active 0, succeeded 0, failed 1"; got != want {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	})
}

func TestElasticIndexedJobDropsTheHighestIndexes(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(3, 3, indexed))
		w.Settle()
		w.RunPods(nil)
		controllertest.Change(w, "work", func(j *batchv1.Job) { j.Spec.Completions, j.Spec.Parallelism = new(int32(1)), new(int32(1)) })
		w.RunPods(nil)
		pods := w.Pods("")
		if len(pods) != 1 || pods[0].Annotations[batchv1.JobCompletionIndexAnnotation] != "0" {
			t.Errorf("%d pods left: %s", len(pods), outcome(w))
		}
		if got := controllertest.Get[*batchv1.Job](w, "work").Status.Failed; got != 0 {
			t.Errorf("%d pods failed by being taken away", got)
		}
	})
}

func TestPodsTakenAwayDoNotFailTheJob(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(5, 5, func(s *batchv1.JobSpec) { s.BackoffLimit = new(int32(0)) }))
		w.Settle()
		w.RunPods(nil)
		controllertest.Change(w, "work", func(j *batchv1.Job) { j.Spec.Parallelism = new(int32(2)) })
		w.RunPods(nil)
		if got := outcome(w); got != "; active 2, succeeded 0, failed 0" {
			t.Errorf("with fewer: %q", got)
		}
	})
}

func TestMoreSuccessesThanWereAskedForAreToldOf(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(1, 1))
		w.Settle()
		twin := w.Pods("")[0].DeepCopy()
		twin.ObjectMeta = metav1.ObjectMeta{Name: "twin", Labels: twin.Labels, OwnerReferences: twin.OwnerReferences, Finalizers: twin.Finalizers}
		twin.Status = corev1.PodStatus{}
		w.FailWrites(func(int) (before, after error) { return errors.New("not now"), nil })
		w.Create(twin)
		for _, pod := range w.Pods("") {
			controllertest.ChangeStatus(w, pod.Name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
		}
		w.FailWrites(nil)
		time.Sleep(time.Minute)
		w.Settle()
		if all := w.Events(); !slices.Contains(all, "Warning TooManySucceededPods Too many succeeded pods running after completion count reached") {
			t.Errorf("%s, events %q", outcome(w), all)
		}
	})
}

func TestPodsOfADeletedJobLoseTheFinalizer(t *testing.T) {
	controllertest.Run(t, func(w *controllertest.World) {
		defer start(w)()
		w.Create(work(1, 1))
		w.Settle()
		w.RunPods(nil)
		if _, err := client.Of[*batchv1.Job](w.API).Delete(w.T.Context(), controllertest.Namespace, "work", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}); err != nil {
			t.Fatal(err)
		}
		w.Settle()
		if pods := w.Pods(""); len(pods) != 1 || len(pods[0].Finalizers) != 0 {
			t.Errorf("pods %v", pods)
		}
	})
}

// A controller that dies between any two writes, before or after the server
// carried one out, counts every pod exactly once in the end.
func TestNoEndIsLostOrCountedTwiceWhereverTheControllerDies(t *testing.T) {
	for n := range 24 {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("write %d, carried out: %v", n, after), func(t *testing.T) {
				controllertest.Run(t, func(w *controllertest.World) {
					w.FailWrites(controllertest.DieAt(n, after))
					stop := start(w)
					w.Create(work(4, 2, indexed))
					w.Settle()
					first := true
					exit := func(pod *corev1.Pod) int32 {
						if pod.Annotations[batchv1.JobCompletionIndexAnnotation] == "1" && first {
							first = false
							return 1
						}
						return 0
					}
					for range 3 {
						w.RunPods(nil)
						for _, pod := range w.Pods("") {
							if pod.Status.Phase == corev1.PodRunning {
								finish(w, pod, exit(pod))
							}
						}
					}
					stop()
					w.FailWrites(nil)
					defer start(w)()
					end(w, exit)
					want := "SuccessCriteriaMet=True:CompletionsReached Complete=True:CompletionsReached; active 0, succeeded 4, failed 1; completed 0-3"
					if got := outcome(w); got != want {
						t.Errorf("\n got %s\nwant %s", got, want)
					}
				})
			})
		}
	}
}
