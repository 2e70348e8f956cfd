// oneDNN says what a primitive is to do in two ways: until version 2 by an object of its own, since version 3
// by the arguments of a primitive's description. Debian 12 has version 2, Debian 13 and Ubuntu 24.04 have 3.
#pragma once

#include <dnnl.hpp>

namespace pipeshard::kernels {

#if DNNL_VERSION_MAJOR >= 3
inline dnnl::memory::dims sizesOf(const dnnl::memory::desc& tensor) { return tensor.get_dims(); }
#else
inline dnnl::memory::dims sizesOf(const dnnl::memory::desc& tensor) { return tensor.dims(); }
#endif

// `parts`: what the primitive's own description takes in both versions, in that order.
template <typename Primitive, typename... Parts>
typename Primitive::primitive_desc describe(const dnnl::engine& engine,
                                            const dnnl::primitive_attr& attributes, const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, parts..., attributes);
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(parts...), attributes, engine);
#endif
}

// Of a backward pass, with the description of its forward pass.
template <typename Primitive, typename Forward, typename... Parts>
typename Primitive::primitive_desc describeBackward(const dnnl::engine& engine,
                                                    const dnnl::primitive_attr& attributes,
                                                    const Forward& forward, const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return typename Primitive::primitive_desc(engine, parts..., forward, attributes);
#else
  return typename Primitive::primitive_desc(typename Primitive::desc(parts...), attributes, engine, forward);
#endif
}

}  // namespace pipeshard::kernels
