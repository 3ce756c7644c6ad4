package handshake;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Collections;
import java.util.Iterator;
import org.apache.spark.TaskContext;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/**
 * A partition's tuples to panes inside of Spark's own process: what query_state.reduce_panes does, without
 * a row for Python. java_panes.py prepares the columns and reads what comes out.
 *
 * Column 0 of a row is its time, a long or NULL; all other columns are longs, doubles, decimals, bytes (of
 * texts) or, for conditions, booleans that are not NULL. Janino compiles this: no lambdas, no generics.
 */
public final class PaneMaker implements MapPartitionsFunction {
    static final long serialVersionUID = 1L;
    /** The first eight bytes of what is written: HSPANES1. */
    static final long MARK = 0x3153454E41505348L;
    static final int COUNT = 0, SUM = 1, WIDE = 2, FLOATS = 3, DECIMALS = 4, GREATEST = 5, LEAST = 6;

    final long size, advance;
    final int below, inside;
    final int[] keys, functions, columns, widths;
    final boolean[] texts;

    /**
     * Conditions are columns, -1 for none: `below` drops tuples, `inside` keeps them from being aggregated.
     * `keys` are columns, null where there is no grouping, and `texts` says which of them have bytes.
     */
    public PaneMaker(
            long size, long advance, int below, int inside, int[] keys, boolean[] texts,
            int[] functions, int[] columns, int[] widths) {
        this.size = size;
        this.advance = advance;
        this.below = below;
        this.inside = inside;
        this.keys = keys;
        this.texts = texts;
        this.functions = functions;
        this.columns = columns;
        this.widths = widths;
    }

    public Iterator call(Iterator rows) {
        Panes panes = new Panes(this);
        while (rows.hasNext()) panes.take((Row) rows.next());
        if (panes.rows == 0) return Collections.emptyList().iterator();
        Integer none = Integer.valueOf(0), partition = Integer.valueOf(TaskContext.getPartitionId());
        Row blob = RowFactory.create(new Object[] {none, none, partition, none, panes.written()});
        return Collections.singletonList(blob).iterator();
    }

    /** The panes of a partition so far. */
    static final class Panes {
        final PaneMaker shape;
        final Groups groups;
        final Part[] parts;
        final Numbers panes = new Numbers(), slots = new Numbers();
        long[] first = new long[16], last = new long[16], tuples = new long[16];
        long[] counts = new long[16], arrivals = new long[16];
        long rows, noTime, latest = Long.MIN_VALUE, earliest = Long.MAX_VALUE;
        long from = 0, until = 0;
        int pane = -1;

        Panes(PaneMaker shape) {
            this.shape = shape;
            this.groups = shape.keys == null ? null : new Groups(shape.keys, shape.texts);
            this.parts = new Part[shape.functions.length];
            for (int k = 0; k < parts.length; k++)
                parts[k] = Part.of(shape.functions[k], shape.columns[k], shape.widths[k]);
        }

        void take(Row row) {
            rows++;
            boolean taken = shape.below < 0 || row.getBoolean(shape.below);
            if (row.isNullAt(0)) {
                if (taken) noTime++;
                return;
            }
            long time = row.getLong(0);
            latest = Math.max(latest, time);  // a selection does not keep a clock from what it shows
            earliest = Math.min(earliest, time);
            if (taken) put(row, time);
        }

        void put(Row row, long time) {
            if (time < from || time >= until) move(time);
            if (pane < 0) return;
            tuples[pane]++;
            if (shape.inside >= 0 && !row.getBoolean(shape.inside)) return;
            int slot = groups == null ? pane : slot(row);
            for (int k = 0; k < parts.length; k++) parts[k].add(row, slot);
        }

        /** To the pane of another instant, which all instants from `from` until `until` have; -1 in gaps. */
        void move(long time) {
            long begin = Math.floorDiv(time - shape.size, shape.advance) + 1;
            long end = Math.floorDiv(time, shape.advance);
            from = Math.max(end * shape.advance, (begin - 1) * shape.advance + shape.size);
            until = Math.min((end + 1) * shape.advance, begin * shape.advance + shape.size);
            int known = panes.size;
            pane = begin > end ? -1 : panes.of(from);
            if (panes.size > known) open(begin, end);
        }

        /** A pane that is new. */
        void open(long begin, long end) {
            if (pane == first.length) {
                first = Arrays.copyOf(first, 2 * pane);
                last = Arrays.copyOf(last, 2 * pane);
                tuples = Arrays.copyOf(tuples, 2 * pane);
            }
            first[pane] = begin;
            last[pane] = end;
            if (groups == null) grow(pane);
        }

        void grow(int slot) {
            for (int k = 0; k < parts.length; k++) parts[k].grow(slot);
        }

        /** The slot of a group's pane; its tuples are counted, and the place of the first is kept. */
        int slot(Row row) {
            int known = slots.size, slot = slots.of((long) pane << 32 | groups.of(row));
            if (slot == counts.length) {
                counts = Arrays.copyOf(counts, 2 * slot);
                arrivals = Arrays.copyOf(arrivals, 2 * slot);
            }
            if (slots.size > known) {
                arrivals[slot] = rows;
                grow(slot);
            }
            counts[slot]++;
            return slot;
        }

        /** All of it, in whole numbers of 64 bits, lowest byte first; pane_blobs.py has the other end. */
        byte[] written() {
            int many = groups == null ? panes.size : slots.size;
            Out out = new Out();
            long groupCount = groups == null ? 0 : groups.size;
            long[] head = {MARK, rows, noTime, earliest, latest, panes.size, many, groupCount};
            out.put(head, head.length);
            out.put(first, panes.size);
            out.put(last, panes.size);
            out.put(tuples, panes.size);
            if (groups != null) {
                out.put(slots.inOrder(), many);
                out.put(counts, many);
                out.put(arrivals, many);
            }
            for (int k = 0; k < parts.length; k++) out.put(parts[k].state, many * parts[k].width);
            if (groups != null) groups.write(out);
            return out.bytes();
        }
    }

    /** What an aggregate has of each slot: a row of whole numbers. */
    abstract static class Part {
        final int column, width;
        long[] state;

        Part(int column, int width) {
            this.column = column;
            this.width = width;
            this.state = new long[16 * width];
        }

        static Part of(int function, int column, int width) {
            switch (function) {
                case COUNT: return new Count(column, width);
                case SUM: return new Sum(column, width);
                case WIDE: return new Wide(column, width);
                case FLOATS: return new Floats(column, width);
                case DECIMALS: return new Decimals(column, width);
                case GREATEST: return new Extreme(column, width, 0L);
                case LEAST: return new Extreme(column, width, -1L);
                default: throw new IllegalArgumentException("no aggregate has the number " + function);
            }
        }

        void grow(int slot) {
            int needed = Math.multiplyExact(slot + 1, width);
            if (needed > state.length) state = Arrays.copyOf(state, Math.multiplyExact(needed, 2));
        }

        void add(Row row, int slot) {
            if (column >= 0 && row.isNullAt(column)) return;
            state[slot * width]++;
            sum(row, slot * width + 1);
        }

        /** Put a value into a sum that begins at this place. */
        abstract void sum(Row row, int at);
    }

    static final class Count extends Part {
        Count(int column, int width) { super(column, width); }

        void sum(Row row, int at) { }
    }

    /** Of less than 64 bits: 2^31 of them fit a long. */
    static final class Sum extends Part {
        Sum(int column, int width) { super(column, width); }

        void sum(Row row, int at) { state[at] += row.getLong(column); }
    }

    /** Of 64 bits: in limbs of 32, as kernels/panes.py has them. */
    static final class Wide extends Part {
        Wide(int column, int width) { super(column, width); }

        void sum(Row row, int at) {
            long value = row.getLong(column);
            state[at] += value & 0xFFFFFFFFL;
            state[at + 1] += value >> 32;
        }
    }

    static final class Decimals extends Part {
        Decimals(int column, int width) { super(column, width); }

        void sum(Row row, int at) {
            BigInteger digits = row.getDecimal(column).unscaledValue();
            long low = digits.longValue(), high = digits.shiftRight(64).longValue();
            state[at] += low & 0xFFFFFFFFL;
            state[at + 1] += low >>> 32;
            state[at + 2] += high & 0xFFFFFFFFL;
            state[at + 3] += high >> 32;
        }
    }

    /** kernels/panes.add_floats: a superaccumulator, after counts of NaN, plus and minus infinity. */
    static final class Floats extends Part {
        Floats(int column, int width) { super(column, width); }

        void sum(Row row, int at) {
            double value = row.getDouble(column);
            long word = Double.doubleToRawLongBits(value);
            int exponent = (int) (word >> 52) & 0x7FF;
            if (exponent == 0x7FF) {
                state[at + (value != value ? 0 : value > 0 ? 1 : 2)]++;
                return;
            }
            long digits = word & 0xFFFFFFFFFFFFFL;
            if (exponent > 0) {
                digits |= 1L << 52;
                exponent--;
            }
            int limb = at + 3 + (exponent >> 5), shift = exponent & 31;
            long low = (digits & 0xFFFFFFFFL) << shift, high = (digits >> 32) << shift;
            long sign = word < 0 ? -1L : 1L;
            state[limb] += sign * (low & 0xFFFFFFFFL);
            state[limb + 1] += sign * ((low >>> 32) + (high & 0xFFFFFFFFL));
            state[limb + 2] += sign * (high >>> 32);
        }
    }

    /** The greatest key, and whether there is one; keys in the opposite order, their complement, for the least. */
    static final class Extreme extends Part {
        final long flip;

        Extreme(int column, int width, long flip) {
            super(column, width);
            this.flip = flip;
        }

        void add(Row row, int slot) {
            Object value = row.get(column);
            if (value == null) return;
            long key = key(value) ^ flip;
            int at = slot * width;
            if (state[at + 1] != 0 && state[at] >= key) return;
            state[at] = key;
            state[at + 1] = 1;
        }

        void sum(Row row, int at) { }

        /** A whole number with the place of a value in the order of values: NaN is the largest. */
        static long key(Object value) {
            if (value instanceof Long) return ((Long) value).longValue();
            if (value instanceof BigDecimal) return ((BigDecimal) value).unscaledValue().longValueExact();
            double number = ((Double) value).doubleValue() + 0.0;  // no minus zero
            long bits = Double.doubleToLongBits(number);
            return number != number ? Long.MAX_VALUE : bits < 0 ? bits ^ Long.MAX_VALUE : bits;
        }
    }

    /** Combinations of keys by number, in the order in which they came. */
    static final class Groups {
        final Key[] keys;
        int[] table = new int[64], hashes = new int[32];
        int size;

        Groups(int[] columns, boolean[] texts) {
            keys = new Key[columns.length];
            for (int k = 0; k < keys.length; k++)
                keys[k] = texts[k] ? (Key) new Text(columns[k]) : (Key) new Whole(columns[k]);
        }

        int of(Row row) {
            int hash = 0;
            for (int k = 0; k < keys.length; k++) hash = 31 * hash + keys[k].look(row);
            int at = Numbers.mixed(hash) & (table.length - 1);
            for (; table[at] != 0; at = (at + 1) & (table.length - 1))
                if (hashes[table[at] - 1] == hash && same(table[at] - 1)) return table[at] - 1;
            return add(hash, at);
        }

        boolean same(int group) {
            for (int k = 0; k < keys.length; k++) if (!keys[k].same(group)) return false;
            return true;
        }

        int add(int hash, int at) {
            if (size == hashes.length) hashes = Arrays.copyOf(hashes, 2 * size);
            hashes[size] = hash;
            for (int k = 0; k < keys.length; k++) keys[k].keep(size);
            table[at] = ++size;
            if (2 * size >= table.length) spread();
            return size - 1;
        }

        void spread() {
            int mask = 2 * table.length - 1;
            table = new int[mask + 1];
            for (int group = 0; group < size; group++) {
                int at = Numbers.mixed(hashes[group]) & mask;
                while (table[at] != 0) at = (at + 1) & mask;
                table[at] = group + 1;
            }
        }

        void write(Out out) {
            for (int k = 0; k < keys.length; k++) keys[k].write(out, size);
        }
    }

    /** One column of keys: its value in the row that is looked at, and those of all groups. NULL is a key. */
    abstract static class Key {
        final int column;
        long[] known = new long[16];

        Key(int column) { this.column = column; }

        /** Take a row's value; its hash. */
        abstract int look(Row row);
        abstract boolean same(int group);
        abstract void keep(int group);
        abstract void write(Out out, int groups);

        void mark(int group, boolean there) {
            if (group == known.length) known = Arrays.copyOf(known, 2 * group);
            known[group] = there ? 1 : 0;
        }
    }

    /** Whole numbers, and floats by their bits: one NaN, and no minus zero. */
    static final class Whole extends Key {
        long[] values = new long[16];
        long value;
        boolean there;

        Whole(int column) { super(column); }

        int look(Row row) {
            Object found = row.get(column);
            there = found != null;
            value = !there ? 0L
                : found instanceof Long ? ((Long) found).longValue()
                : Double.doubleToLongBits(((Double) found).doubleValue() + 0.0);
            return (int) (value ^ value >>> 32);
        }

        boolean same(int group) { return values[group] == value && known[group] == (there ? 1 : 0); }

        void keep(int group) {
            mark(group, there);
            if (group == values.length) values = Arrays.copyOf(values, 2 * group);
            values[group] = value;
        }

        void write(Out out, int groups) {
            out.put(known, groups);
            out.put(values, groups);
        }
    }

    static final class Text extends Key {
        byte[][] values = new byte[16][];
        byte[] value;

        Text(int column) { super(column); }

        int look(Row row) {
            value = (byte[]) row.get(column);
            return Arrays.hashCode(value);
        }

        boolean same(int group) { return Arrays.equals(values[group], value); }

        void keep(int group) {
            mark(group, value != null);
            if (group == values.length) values = (byte[][]) Arrays.copyOf(values, 2 * group);
            values[group] = value;
        }

        void write(Out out, int groups) {
            long[] ends = new long[groups];
            long length = 0;
            for (int k = 0; k < groups; k++) {
                if (values[k] != null) length += values[k].length;
                ends[k] = length;
            }
            out.put(known, groups);
            out.put(ends, groups);
            for (int k = 0; k < groups; k++) if (values[k] != null) out.put(values[k]);
            out.pad();
        }
    }

    /** Whole numbers to 0, 1, 2, … in the order in which they came. */
    static final class Numbers {
        long[] keys = new long[64];
        int[] numbers = new int[64];
        int size;

        int of(long key) {
            int at = mixed(key ^ key >>> 32) & (keys.length - 1);
            for (; numbers[at] != 0; at = (at + 1) & (keys.length - 1))
                if (keys[at] == key) return numbers[at] - 1;
            keys[at] = key;
            numbers[at] = ++size;
            if (2 * size >= keys.length) spread();
            return size - 1;
        }

        void spread() {
            long[] old = inOrder();
            keys = new long[2 * keys.length];
            numbers = new int[keys.length];
            for (int k = 0; k < size; k++) {
                int at = mixed(old[k] ^ old[k] >>> 32) & (keys.length - 1);
                while (numbers[at] != 0) at = (at + 1) & (keys.length - 1);
                keys[at] = old[k];
                numbers[at] = k + 1;
            }
        }

        long[] inOrder() {
            long[] found = new long[size];
            for (int at = 0; at < keys.length; at++) if (numbers[at] != 0) found[numbers[at] - 1] = keys[at];
            return found;
        }

        /** Hashes that differ in few bits, as those of times do, to places that are far apart. */
        static int mixed(long hash) {
            long mixed = hash * 0x9E3779B97F4A7C15L;
            return (int) (mixed ^ mixed >>> 32);
        }
    }

    /** Bytes that are written one after the other. */
    static final class Out {
        ByteBuffer buffer = ByteBuffer.allocate(1 << 12).order(ByteOrder.LITTLE_ENDIAN);

        void put(long[] values, int count) {
            room(Math.multiplyExact(8, count));
            for (int k = 0; k < count; k++) buffer.putLong(values[k]);
        }

        void put(byte[] values) {
            room(values.length);
            buffer.put(values);
        }

        /** What follows lies at a multiple of eight bytes, where compiled code wants it. */
        void pad() { put(new byte[-buffer.position() & 7]); }

        void room(int bytes) {
            if (buffer.remaining() >= bytes) return;
            int needed = Math.addExact(buffer.position(), bytes);
            int length = (int) Math.min(Integer.MAX_VALUE - 16L, 2L * needed);
            buffer = ByteBuffer.wrap(Arrays.copyOf(bytes(), Math.max(length, needed)), buffer.position(),
                Math.max(length, needed) - buffer.position()).order(ByteOrder.LITTLE_ENDIAN);
        }

        byte[] bytes() { return Arrays.copyOf(buffer.array(), buffer.position()); }
    }
}
