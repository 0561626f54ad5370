#include "tests/benchmarks/onednn_peer.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "aqt/core/dtype.h"

#ifdef AQT_HAVE_ONEDNN
#include <dnnl.hpp>
#endif

namespace aqt::benchmarks {

#if defined(AQT_HAVE_ONEDNN) && DNNL_VERSION_MAJOR == 2
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

dnnl::engine& Engine() {
  static auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}

memory::data_type TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return memory::data_type::f32;
    case DType::kBF16: return memory::data_type::bf16;
    case DType::kS8: return memory::data_type::s8;
    case DType::kS32: return memory::data_type::s32;
    default: return memory::data_type::undef;
  }
}

// One primitive with its arrays.
std::function<void()> Runner(dnnl::primitive primitive, std::unordered_map<int, memory> args) {
  return [primitive, args = std::move(args), stream = dnnl::stream(Engine())]() mutable {
    primitive.execute(stream, args);
    stream.wait();
  };
}

memory Reordered(const memory::desc& from, const void* data, const memory::desc& to) {
  memory plain(from, Engine(), const_cast<void*>(data)), packed(to, Engine());
  dnnl::stream stream(Engine());
  dnnl::reorder(plain, packed).execute(stream, plain, packed);
  stream.wait();
  return packed;
}

}  // namespace

std::string OneDnnVersion() {
  const dnnl_version_t* v = dnnl_version();
  return absl::StrCat(v->major, ".", v->minor, ".", v->patch);
}

std::function<void()> MakeOneDnnMatMul(const OneDnnMatMul& args, const void* a, const void* b, void* c) try {
  const MatMul& s = args.shape;
  const auto desc = [&](DType dtype, int64_t rows, int64_t cols, bool transposed, bool any) {
    memory::dims dims = {rows, cols};
    if (args.batch > 1) dims = {args.batch, rows, cols};
    Tag tag = transposed ? Tag::ba : Tag::ab;
    if (args.batch > 1) tag = transposed ? Tag::acb : Tag::abc;
    return memory::desc(dims, TypeOf(dtype), any ? Tag::any : tag);
  };
  const memory::desc a_desc = desc(args.a, s.m, s.k, s.transpose_a, false);
  const memory::desc b_desc = desc(args.b, s.k, s.n, s.transpose_b, false);
  const memory::desc c_desc = desc(args.c, s.m, s.n, false, false);
  const dnnl::matmul::desc op(a_desc, args.pack_b ? desc(args.b, s.k, s.n, false, true) : b_desc, c_desc);
  const dnnl::matmul::primitive_desc plan(op, Engine());
  const memory b_memory =
      args.pack_b ? Reordered(b_desc, b, plan.weights_desc()) : memory(b_desc, Engine(), const_cast<void*>(b));
  return Runner(dnnl::matmul(plan), {{DNNL_ARG_SRC, memory(a_desc, Engine(), const_cast<void*>(a))},
                                     {DNNL_ARG_WEIGHTS, b_memory},
                                     {DNNL_ARG_DST, memory(c_desc, Engine(), c)}});
} catch (const dnnl::error&) {
  return nullptr;
}

std::function<void()> MakeOneDnnConv(const OneDnnConv& args, void* x, void* kernel, void* out) try {
  const auto f32 = memory::data_type::f32;
  const int64_t out_height = args.height + 2 * args.padding - args.kernel + 1;
  const int64_t out_width = args.width + 2 * args.padding - args.kernel + 1;
  const memory::dims kernel_dims = {args.out, args.in, args.kernel, args.kernel};
  const memory::desc x_desc({args.batch, args.in, args.height, args.width}, f32, Tag::nhwc);
  const memory::desc out_desc({args.batch, args.out, out_height, out_width}, f32, Tag::nhwc);
  const memory::desc kernel_any(kernel_dims, f32, Tag::any), kernel_plain(kernel_dims, f32, Tag::hwio);
  const memory::dims strides = {1, 1}, padding = {args.padding, args.padding};
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const memory x_memory(x_desc, Engine(), x), out_memory(out_desc, Engine(), out);
  const dnnl::convolution_forward::primitive_desc forward(
      {dnnl::prop_kind::forward_training, algorithm, x_desc, kernel_any, out_desc, strides, padding, padding},
      Engine());
  switch (args.result) {
    case OneDnnConv::Result::kOut:
      return Runner(dnnl::convolution_forward(forward),
                    {{DNNL_ARG_SRC, x_memory},
                     {DNNL_ARG_WEIGHTS, Reordered(kernel_plain, kernel, forward.weights_desc())},
                     {DNNL_ARG_DST, out_memory}});
    case OneDnnConv::Result::kX: {
      const dnnl::convolution_backward_data::primitive_desc plan(
          {algorithm, x_desc, kernel_any, out_desc, strides, padding, padding}, Engine(), forward);
      return Runner(dnnl::convolution_backward_data(plan),
                    {{DNNL_ARG_DIFF_SRC, x_memory},
                     {DNNL_ARG_WEIGHTS, Reordered(kernel_plain, kernel, plan.weights_desc())},
                     {DNNL_ARG_DIFF_DST, out_memory}});
    }
    case OneDnnConv::Result::kKernel: {
      const dnnl::convolution_backward_weights::primitive_desc plan(
          {algorithm, x_desc, kernel_any, out_desc, strides, padding, padding}, Engine(), forward);
      return Runner(dnnl::convolution_backward_weights(plan),
                    {{DNNL_ARG_SRC, x_memory},
                     {DNNL_ARG_DIFF_WEIGHTS, memory(plan.diff_weights_desc(), Engine())},
                     {DNNL_ARG_DIFF_DST, out_memory}});
    }
  }
  return nullptr;
} catch (const dnnl::error&) {
  return nullptr;
}

#else

std::string OneDnnVersion() { return ""; }
std::function<void()> MakeOneDnnMatMul(const OneDnnMatMul&, const void*, const void*, void*) { return nullptr; }
std::function<void()> MakeOneDnnConv(const OneDnnConv&, void*, void*, void*) { return nullptr; }

#endif

}  // namespace aqt::benchmarks
