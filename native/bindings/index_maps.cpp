// The maps that the binding of the index uses, by the sizes of their values.
#include "index/maps/dynamic_map.hpp"

namespace headrace::index::detail {

template class DynamicMapOf<Nothing>;
template class DynamicMapOf<std::uint32_t>;
template class DynamicMapOf<std::uint64_t>;

}  // namespace headrace::index::detail
