// An ordered map from codes to values that is kept in a folder: snapshot and log of changes.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "index/durable/durable_folder.hpp"
#include "index/durable/durable_loading.hpp"
#include "index/maps/code_map.hpp"

namespace headrace::index {

// Map: CodeMap<Value, ...>, or another template of such parameters and this interface.
//
// Opening does not wait for the tree: LoadingMap answers lookups from the mapped snapshot until a
// thread has built it. A block of the snapshot that is damaged is found when a lookup or that
// thread reads it: a DamageError names it, from the lookup and from every commit after.
//
// One thread changes the map. Const members may be called from several threads at once, and beside
// changes (apart from build) if Map allows that of its own: CodeMap<Value, Shared>.
//
// After a failure, the map is unchanged and can be used further, unless broken(): then nothing can
// be committed until the folder is opened again, which finds every group that was committed.
//
// A map belongs to the process that opened it. In a child that was forked since, members throw
// ForkError but close(), which does nothing there, as the destructor does, also at exit: the files,
// the lock and the threads are the parent's.
template <class Value, class Map = CodeMap<Value>>
class DurableMap {
  static constexpr auto kWidth = static_cast<std::uint32_t>(value_bytes<Value>);

 public:
  struct Options : DurableOptions {
    // An empty map, of the configuration that is wanted.
    std::function<Map()> make = [] { return Map(); };
    // Up to so many rows, the tree is built before the opening returns.
    std::uint64_t build_at_once = 65'536;
  };

  // Changes that are committed as one group.
  class Batch {
   public:
    void put(std::uint64_t code, const Value& value) { changes_.put(code, &value); }
    void erase(std::uint64_t code) { changes_.erase(code); }
    std::size_t size() const { return changes_.size(); }
    void clear() { changes_.clear(); }

   private:
    friend DurableMap;
    Changes changes_{kWidth};
  };

  // Creates the folder, or opens it with every group that was committed. Throws what
  // DurableFolder's constructor throws.
  explicit DurableMap(std::string folder, Options options = {})
      : body_(std::string(folder), std::string(folder), std::move(options)) {}

  // Appends the changes to the log and applies them. When this returns, they survive the end of the
  // process; with Sync::yes, a loss of power too.
  void commit(Batch& batch, Sync sync = Sync::no) {
    auto& body = usable();
    body.folder.commit(batch.changes_, sync);
    body.incomplete = true;  // stays so if memory is exhausted within the group
    body.rows.apply(batch.changes_);
    body.incomplete = false;
  }

  // Returns once all that was committed survives a loss of power.
  void sync() { body_->folder.sync(); }

  bool get(std::uint64_t code, Value& out) const { return body_->rows.get(code, out); }
  // Returns how many of the codes were found; `out` and `found` are by position.
  std::size_t get(const std::uint64_t* codes, std::size_t count, Value* out, bool* found) const {
    return body_->rows.get(codes, count, out, found);
  }
  // At most `most` rows from `from` on, ascending; returns how many.
  std::size_t scan(std::uint64_t from, std::size_t most, std::uint64_t* codes,
                   Value* values) const {
    return body_->rows.scan(from, most, codes, values);
  }
  std::size_t size() const { return body_->rows.size(); }

  // Writes a snapshot and ends the logs before it; the map stays usable. Throws what
  // DurableFolder::checkpoint throws; wait_for_checkpoint() throws the failure of the last writing.
  void checkpoint() { body_->folder.checkpoint(); }
  void checkpoint_if_due() { body_->folder.checkpoint_if_due(); }
  void wait_for_checkpoint() { body_->folder.wait(); }

  // Replaces all rows (sorted or not; of equal codes the last wins), much faster than by commits.
  // They survive a loss of power when this returns.
  void build(const std::uint64_t* codes, const Value* values, std::size_t count) {
    auto& body = usable();
    body.rows.wait();
    auto tree = body.make();
    tree.build(codes, values, count);
    body.folder.replace(tree.size(),
                        [&tree](SnapshotWriter& writer) { append_rows(tree, writer); });
    body.rows.replace(std::move(tree));
  }

  // The tree with all rows, for reading; waits until it is built, and throws what stopped that.
  const Map& tree() { return body_->rows.wait(); }
  // tree() does not wait, and lookups are as fast as the tree's.
  bool in_tree() const { return body_->rows.in_tree(); }

  // Ends the log, after a checkpoint that is running. Throws failures of both; those of the tree
  // are thrown by tree() and commit(). Nothing can be committed after, and the folder can be opened
  // elsewhere; the destructor does the same, without the failures. Without effect in a child.
  void close() {
    if (body_.forked()) return;
    body_->folder.close();
  }

  bool broken() const { return body_->incomplete || body_->folder.broken(); }
  // Groups, bytes of logs, the folder's path.
  const DurableFolder& folder() const { return body_->folder; }

 private:
  struct Body {
    Body(std::string path, Options options)
        : make(std::move(options.make)),
          folder(std::move(path), kWidth, options),
          rows(folder.snapshot(), make(), in_background(options)) {
      auto changes = folder.load();
      rows.load(changes.sorted());
    }

    bool in_background(const Options& options) const {
      const auto& snapshot = folder.snapshot();
      return options.background && snapshot && snapshot->size() > options.build_at_once;
    }

    std::function<Map()> make;
    DurableFolder folder;
    LoadingMap<Value, Map> rows;
    bool incomplete = false;
  };

  Body& usable() {
    auto& body = *body_;
    body.rows.check();
    if (!body.incomplete) return body;
    throw std::runtime_error(body.folder.path() +
                             ": memory was exhausted while a committed group was " +
                             "applied; open the folder again");
  }

  static void append_rows(const Map& tree, SnapshotWriter& writer) {
    std::vector<std::uint64_t> codes(4096);
    std::vector<Element<Value>> values(codes.size());
    for (std::uint64_t from = 0;;) {
      auto count = tree.scan(from, codes.size(), codes.data(), value_array<Value>(values));
      writer.append(codes.data(), reinterpret_cast<const std::byte*>(value_array<Value>(values)),
                    count);
      if (count < codes.size() || codes.back() == std::numeric_limits<std::uint64_t>::max()) break;
      from = codes.back() + 1;
    }
  }

  ProcessBound<Body> body_;
};

}  // namespace headrace::index
