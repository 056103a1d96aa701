#include "embedding/row_store.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "embedding/row_numbers.hpp"

namespace headrace::embedding {

namespace {

// Rows ahead of the one that is written whose memory is fetched into the processor's cache.
constexpr std::size_t kAhead = 12;

}  // namespace

RowStore::Table::Table(InitialValues values, RowChunks& chunks, MemoryBudget& budget)
    : initial(values),
      rows(std::in_place_type<HashedRows>, chunks),
      sorted(Budgeted<std::int64_t>(budget)) {}

RowStore::Table::Table(InitialValues values, RowChunks& chunks, MemoryBudget& budget,
                       const ShardRule& rule, std::uint64_t places)
    : initial(values),
      rows(std::in_place_type<DenseRows>, chunks, rule, places),
      sorted(Budgeted<std::int64_t>(budget)) {}

RowStore::RowStore(RowStoreOptions options)
    : options_(std::move(options)),
      rule_(options_.shards),
      row_bytes_((options_.dim + options_.state) * (options_.float64 ? 8 : 4)),
      dense_chunks_(*options_.memory, std::max(row_bytes_, std::size_t{1})),
      hashed_chunks_(*options_.memory, row_bytes_ + HashedRows::kIdBytes) {
  if (options_.dim == 0) throw std::invalid_argument("dim is 0, needs 1 or more");
  if (options_.shard >= options_.shards) {
    throw std::invalid_argument("shard is " + std::to_string(options_.shard) + ", needs 0 to " +
                                std::to_string(options_.shards) + " - 1");
  }
  for (const auto& table : options_.tables) {
    const InitialValues values(options_.seed, table.number, table.distribution, table.scale);
    if (table.rows > 0 && table.rows <= kMostNumbered) {
      tables_.push_back(std::make_unique<Table>(values, dense_chunks_, *options_.memory, rule_,
                                                rule_.places(table.rows)));
    } else {
      tables_.push_back(std::make_unique<Table>(values, hashed_chunks_, *options_.memory));
    }
  }
}

void RowStore::check(const RowIds& rows, std::size_t value_bytes) const {
  check_ends(rows.ends, tables_.size(), rows.ids.size());
  if (value_bytes != rows.ids.size() * row_bytes_) {
    throw std::invalid_argument("values have " + std::to_string(value_bytes) + " bytes, need " +
                                std::to_string(row_bytes_) + " for each of " +
                                std::to_string(rows.ids.size()) + " ids");
  }
  std::size_t begin = 0;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const auto end = static_cast<std::size_t>(rows.ends[t]);
    check_ids(options_.tables[t], rows.ids.subspan(begin, end - begin));
    begin = end;
  }
}

void RowStore::check_ids(const RowTable& table, Ids ids) const {
  const auto most = table.rows == 0 ? std::uint64_t{1} << 63 : table.rows;
  for (const auto id : ids) {
    const auto unsigned_id = static_cast<std::uint64_t>(id);  // negative ones are large
    if (unsigned_id >= most) {
      throw std::invalid_argument("table " + table.name + ": id is " + std::to_string(id) +
                                  ", needs 0 to " + std::to_string(most - 1));
    }
    if (const auto shard = rule_.shard(unsigned_id); shard != options_.shard) {
      throw std::invalid_argument("table " + table.name + ": id " + std::to_string(id) +
                                  " is of server " + std::to_string(shard) + ", this is server " +
                                  std::to_string(options_.shard) + " of " +
                                  std::to_string(options_.shards));
    }
  }
}

const RowStore::Table& RowStore::table_at(std::size_t table) const {
  if (table < tables_.size()) return *tables_[table];
  throw std::invalid_argument("table is " + std::to_string(table) + ", needs less than the " +
                              std::to_string(tables_.size()) + " of the group");
}

// Calls `action(table, ids, first)` for blocks of ids of one table, `first` being the first one's
// place in the call.
template <class Action>
void RowStore::for_blocks(const RowIds& rows, const Action& action) const {
  std::size_t begin = 0;
  for (std::size_t t = 0; t < tables_.size(); ++t) {
    const auto end = static_cast<std::size_t>(rows.ends[t]);
    for (; begin < end; begin = std::min(begin + kBlock, end)) {
      action(*tables_[t], rows.ids.subspan(begin, std::min(kBlock, end - begin)), begin);
    }
  }
}

void RowStore::locate(const Table& table, Ids ids, RowsOfBlock& rows) {
  std::visit([&](const auto& of_table) { of_table.locate(ids, rows); }, table.rows);
}

// Sets the rows of a block that are null. Under the table's lock for writers: another thread may
// have created some since the block was located.
void RowStore::create(Table& table, Ids ids, RowsOfBlock& rows) {
  std::visit(
      [&](auto& of_table) {
        for (std::size_t i = 0; i < ids.size(); ++i) {
          if (rows[i] == nullptr) rows[i] = of_table.find(ids[i]);
          if (rows[i] != nullptr) continue;
          rows[i] = of_table.create(ids[i]);
          write_initial(table, ids[i], rows[i]);
        }
      },
      table.rows);
}

void RowStore::write_initial(const Table& table, std::int64_t id, std::byte* values) const {
  const auto write = [&]<class Number>(Number state) {
    table.initial.write<Number>(static_cast<std::uint64_t>(id), values, options_.dim);
    for (auto i = options_.dim; i < options_.dim + options_.state; ++i) {
      std::memcpy(values + i * sizeof(Number), &state, sizeof(Number));
    }
  };
  if (options_.float64) {
    write(options_.state_initial);
  } else {
    write(static_cast<float>(options_.state_initial));
  }
}

// Whether all of a block have rows.
bool RowStore::complete(const RowsOfBlock& rows, std::size_t count) {
  return std::find(rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(count), nullptr) ==
         rows.begin() + static_cast<std::ptrdiff_t>(count);
}

void RowStore::copy_out(const RowsOfBlock& rows, std::size_t count, std::byte* values) const {
  for (std::size_t i = 0; i < count; ++i) {
    std::memcpy(values + i * row_bytes_, rows[i], row_bytes_);
  }
}

void RowStore::fetch(const RowIds& rows, std::span<std::byte> values) {
  check(rows, values.size());
  for_blocks(rows, [&](Table& table, Ids ids, std::size_t first) {
    auto* out = values.data() + first * row_bytes_;
    RowsOfBlock of_block;
    {
      const std::shared_lock lock(table.mutex);
      locate(table, ids, of_block);
      if (complete(of_block, ids.size())) {
        copy_out(of_block, ids.size(), out);
        return;
      }
    }
    const std::lock_guard lock(table.mutex);
    create(table, ids, of_block);
    copy_out(of_block, ids.size(), out);
  });
}

void RowStore::write(const RowIds& rows, std::span<const std::byte> values) {
  check(rows, values.size());
  // All rows exist before the first is written: where memory ends, none has changed.
  std::vector<std::byte*> to(rows.ids.size());
  for_blocks(rows, [&](Table& table, Ids ids, std::size_t first) {
    RowsOfBlock of_block;
    {
      const std::shared_lock lock(table.mutex);
      locate(table, ids, of_block);
    }
    if (!complete(of_block, ids.size())) {
      const std::lock_guard lock(table.mutex);
      create(table, ids, of_block);
    }
    std::copy_n(of_block.begin(), ids.size(), to.begin() + static_cast<std::ptrdiff_t>(first));
  });
  for_blocks(rows, [&](Table& table, Ids ids, std::size_t first) {
    const std::lock_guard lock(table.mutex);
    for (auto i = first; i < first + ids.size(); ++i) {
      if (i + kAhead < to.size()) prefetch_row(to[i + kAhead], row_bytes_);
      std::memcpy(to[i], values.data() + i * row_bytes_, row_bytes_);
    }
  });
}

void RowStore::read(const RowIds& rows, std::span<std::byte> values) const {
  check(rows, values.size());
  for_blocks(rows, [&](const Table& table, Ids ids, std::size_t first) {
    RowsOfBlock of_block;
    const std::shared_lock lock(table.mutex);
    locate(table, ids, of_block);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      auto* out = values.data() + (first + i) * row_bytes_;
      if (of_block[i] == nullptr) {
        write_initial(table, ids[i], out);
      } else {
        std::memcpy(out, of_block[i], row_bytes_);
      }
    }
  });
}

std::size_t RowStore::scan(std::size_t number, std::int64_t after, std::span<std::int64_t> ids,
                           std::span<std::byte> values) const {
  const auto& table = table_at(number);
  if (values.size() != ids.size() * row_bytes_) {
    throw std::invalid_argument("values have " + std::to_string(values.size()) + " bytes, need " +
                                std::to_string(row_bytes_) + " for each of " +
                                std::to_string(ids.size()) + " ids");
  }
  const auto count = list_ids(table, after, ids);
  for (std::size_t first = 0; first < count; first += kBlock) {
    const auto block = ids.subspan(first, std::min(kBlock, count - first));
    RowsOfBlock rows;
    const std::shared_lock lock(table.mutex);
    locate(table, block, rows);
    copy_out(rows, block.size(), values.data() + first * row_bytes_);
  }
  return count;
}

std::size_t RowStore::list_ids(const Table& table, std::int64_t after,
                               std::span<std::int64_t> ids) const {
  if (std::holds_alternative<HashedRows>(table.rows)) return list_hashed(table, after, ids);
  const std::shared_lock lock(table.mutex);
  const auto id = [&](std::uint64_t place) {
    return static_cast<std::int64_t>(rule_.id(options_.shard, place));
  };
  auto from = after < 0 ? 0 : rule_.place(static_cast<std::uint64_t>(after));
  if (id(from) <= after) ++from;
  const auto places = std::get<DenseRows>(table.rows).places_from(from, ids.size());
  std::transform(places.begin(), places.end(), ids.begin(), id);
  return places.size();
}

std::size_t RowStore::list_hashed(const Table& table, std::int64_t after,
                                  std::span<std::int64_t> ids) const {
  const std::lock_guard sorted_lock(table.sorted_mutex);
  const auto& rows = std::get<HashedRows>(table.rows);
  const auto sort = [&] {
    {
      const std::shared_lock lock(table.mutex);
      if (after >= 0 && table.sorted.size() == rows.size()) return;
      table.sorted.clear();
      table.sorted.reserve(rows.size());
      for (std::size_t i = 0; i < rows.size(); ++i) table.sorted.push_back(rows.id(i));
    }
    std::sort(table.sorted.begin(), table.sorted.end());
  };
  sort();
  const auto begin = std::upper_bound(table.sorted.begin(), table.sorted.end(), after);
  const auto count = std::min(ids.size(), static_cast<std::size_t>(table.sorted.end() - begin));
  std::copy_n(begin, count, ids.begin());
  if (count < ids.size()) table.sorted = BudgetedVector<std::int64_t>(table.sorted.get_allocator());
  return count;
}

std::size_t RowStore::rows(std::size_t number) const {
  const auto& table = table_at(number);
  const std::shared_lock lock(table.mutex);
  return std::visit([](const auto& rows) { return rows.size(); }, table.rows);
}

std::size_t RowStore::bytes(std::size_t number) const {
  const auto& table = table_at(number);
  const std::shared_lock lock(table.mutex);
  return std::visit([](const auto& rows) { return rows.bytes(); }, table.rows);
}

}  // namespace headrace::embedding
