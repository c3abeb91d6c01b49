package source

import (
	"context"
	"errors"
	"time"

	coordination "k8s.io/api/coordination/v1"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	kuberest "k8s.io/client-go/rest"
)

// clusterAPI is what is asked of a cluster's API. client-go's own client for the group core can do no more for us, and
// brings the types of every other group into the program: a seventh of its size.
type clusterAPI interface {
	Pods(namespace string) watchable[*core.PodList]
	Events(namespace string) watchable[*core.EventList]
	Leases(namespace string) leaseAPI
}

// watchable is one kind of object in a namespace.
type watchable[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// coreAPI is the group core over HTTP, and the group coordination beside it, which has its own limit of requests: a list
// of many pages does not cost a Lease.
type coreAPI struct {
	client, leases kuberest.Interface
	parameters     runtime.ParameterCodec
}

func newCoreAPI(cfg *kuberest.Config) (*coreAPI, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(core.AddToScheme(scheme), coordination.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	cfg = kuberest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.APIPath = &core.SchemeGroupVersion, "/api"
	cfg.NegotiatedSerializer = kuberest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
	client, err := kuberest.RESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	cfg.GroupVersion, cfg.APIPath = &coordination.SchemeGroupVersion, "/apis"
	leases, err := kuberest.RESTClientFor(cfg)
	if err != nil {
		return nil, err
	}
	return &coreAPI{client, leases, runtime.NewParameterCodec(scheme)}, nil
}

// Leases implements clusterAPI.
func (a *coreAPI) Leases(namespace string) leaseAPI { return &leaseResource{a, namespace} }

// leaseResource is the Leases of a namespace.
type leaseResource struct {
	api       *coreAPI
	namespace string
}

// Get implements leaseAPI.
func (r *leaseResource) Get(ctx context.Context, name string, o metav1.GetOptions) (*coordination.Lease, error) {
	return r.answer(ctx, r.api.leases.Get().Name(name), &o)
}

// Create implements leaseAPI.
func (r *leaseResource) Create(ctx context.Context, l *coordination.Lease, o metav1.CreateOptions) (*coordination.Lease, error) {
	return r.answer(ctx, r.api.leases.Post().Body(l), &o)
}

// Update implements leaseAPI.
func (r *leaseResource) Update(ctx context.Context, l *coordination.Lease, o metav1.UpdateOptions) (*coordination.Lease, error) {
	return r.answer(ctx, r.api.leases.Put().Name(l.Name).Body(l), &o)
}

func (r *leaseResource) answer(ctx context.Context, request *kuberest.Request, options runtime.Object) (*coordination.Lease, error) {
	l := &coordination.Lease{}
	return l, request.Namespace(r.namespace).Resource("leases").VersionedParams(options, r.api.parameters).Do(ctx).Into(l)
}

// Pods implements clusterAPI.
func (a *coreAPI) Pods(namespace string) watchable[*core.PodList] {
	return &resource[*core.PodList]{a, "pods", namespace, func() *core.PodList { return &core.PodList{} }}
}

// Events implements clusterAPI.
func (a *coreAPI) Events(namespace string) watchable[*core.EventList] {
	return &resource[*core.EventList]{a, "events", namespace, func() *core.EventList { return &core.EventList{} }}
}

// resource is one kind of object of the group core in a namespace, or with "" in all of them.
type resource[L runtime.Object] struct {
	api             *coreAPI
	name, namespace string
	empty           func() L
}

// List implements watchable.
func (r *resource[L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	list := r.empty()
	return list, r.get(&o).Do(ctx).Into(list)
}

// Watch implements watchable.
func (r *resource[L]) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.Watch = true
	return r.get(&o).Watch(ctx)
}

func (r *resource[L]) get(o *metav1.ListOptions) *kuberest.Request {
	var timeout time.Duration
	if o.TimeoutSeconds != nil {
		timeout = time.Duration(*o.TimeoutSeconds) * time.Second
	}
	return r.api.client.Get().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name).
		VersionedParams(o, r.api.parameters).Timeout(timeout)
}
