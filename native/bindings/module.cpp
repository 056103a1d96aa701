#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_executor(nb::module_& module);
void bind_synthesis(nb::module_& module);

NB_MODULE(_native, module) {
  module.doc() = "The native core of headrace: transport, executor, reductions, synthesis.";
  bind_executor(module);
  bind_synthesis(module);
}
