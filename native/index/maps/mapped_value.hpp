// What `operator[]` of a map gives, as its entries move: an object that reads and writes the value
// of a key by looking it up.
#pragma once

namespace headrace::index {

// Valid while the map is, and has the key. Throws std::out_of_range where the key is gone.
template <class Map>
class MappedValue {
  using Key = typename Map::key_type;
  using Value = typename Map::mapped_type;

 public:
  MappedValue(Map& map, Key key) : map_(&map), key_(key) {}
  MappedValue(const MappedValue&) = default;

  operator Value() const { return map_->at(key_); }
  const MappedValue& operator=(const Value& value) const {
    map_->insert_or_assign(key_, value);
    return *this;
  }
  MappedValue& operator=(const MappedValue& other) {
    map_->insert_or_assign(key_, Value(other));
    return *this;
  }

  template <class Other>
  const MappedValue& operator+=(const Other& other) const {
    return change([&other](Value& value) { value += other; });
  }
  template <class Other>
  const MappedValue& operator-=(const Other& other) const {
    return change([&other](Value& value) { value -= other; });
  }
  template <class Other>
  const MappedValue& operator*=(const Other& other) const {
    return change([&other](Value& value) { value *= other; });
  }
  const MappedValue& operator++() const {
    return change([](Value& value) { ++value; });
  }
  const MappedValue& operator--() const {
    return change([](Value& value) { --value; });
  }
  Value operator++(int) const {
    const Value before = *this;
    ++*this;
    return before;
  }
  Value operator--(int) const {
    const Value before = *this;
    --*this;
    return before;
  }

 private:
  template <class Action>
  const MappedValue& change(const Action& action) const {
    Value value = *this;
    action(value);
    map_->insert_or_assign(key_, value);
    return *this;
  }

  Map* map_;
  Key key_;
};

}  // namespace headrace::index
