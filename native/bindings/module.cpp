#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_attention(nb::module_& module);
void bind_codec(nb::module_& module);
void bind_embedding(nb::module_& module);
void bind_embedding_data(nb::module_& module);
void bind_executor(nb::module_& module);
void bind_index(nb::module_& module);
void bind_index_durable(nb::module_& module);
void bind_index_replay(nb::module_& module);
void bind_index_rows(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_synthesis(nb::module_& module);

NB_MODULE(_native, module) {
  // The traceback of an exception that ends the program keeps objects beyond the check for leaks.
  nb::set_leak_warnings(false);
  module.doc() =
      "The native core of headrace: transport, executor, reductions, codecs, attention, caches of "
      "embeddings, synthesis, index, search for schedules.";
  bind_executor(module);
  bind_attention(module);
  bind_embedding(module);
  bind_embedding_data(module);
  bind_codec(module);
  bind_synthesis(module);
  bind_index(module);
  bind_index_durable(module);
  bind_index_rows(module);
  bind_index_replay(module);
  bind_memory(module);
}
