package handshake;

import java.math.BigDecimal;
import java.math.BigInteger;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Iterator;
import java.util.NoSuchElementException;
import org.apache.spark.api.java.function.MapPartitionsFunction;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.RowFactory;

/**
 * The results of windows to rows inside of Spark's own process: row_blobs.py writes them, column by column, and
 * makes Spark's types of what comes out. Janino compiles this: no lambdas, no generics.
 */
public final class RowReader implements MapPartitionsFunction {
    static final long serialVersionUID = 1L;
    static final int WHOLE = 0, FLOAT = 1, BYTES = 2, DECIMAL = 3;

    final int[] kinds, scales;

    public RowReader(int[] kinds, int[] scales) {
        this.kinds = kinds;
        this.scales = scales;
    }

    public Iterator call(Iterator blobs) { return new Rows(this, blobs); }

    /** A blob at a time: results may be many. */
    static final class Rows implements Iterator {
        final RowReader shape;
        final Iterator blobs;
        Object[][] rows = new Object[0][];
        int at;

        Rows(RowReader shape, Iterator blobs) {
            this.shape = shape;
            this.blobs = blobs;
        }

        public boolean hasNext() {
            while (at == rows.length && blobs.hasNext()) {
                rows = shape.read((byte[]) ((Row) blobs.next()).get(0));
                at = 0;
            }
            return at < rows.length;
        }

        public Object next() {
            if (!hasNext()) throw new NoSuchElementException();
            Object[] row = rows[at];
            at = at + 1;
            return RowFactory.create(row);
        }

        public void remove() { throw new UnsupportedOperationException(); }
    }

    Object[][] read(byte[] data) {
        ByteBuffer buffer = ByteBuffer.wrap(data).order(ByteOrder.LITTLE_ENDIAN);
        Object[][] rows = new Object[(int) buffer.getLong()][];
        for (int k = 0; k < rows.length; k++) rows[k] = new Object[kinds.length];
        for (int column = 0; column < kinds.length; column++) column(buffer, rows, column);
        return rows;
    }

    void column(ByteBuffer buffer, Object[][] rows, int column) {
        long[] there = longs(buffer, rows.length);
        int width = kinds[column] == DECIMAL ? 2 : 1;
        long[] values = longs(buffer, width * rows.length);
        int begin = buffer.position();
        for (int k = 0; k < rows.length; k++)
            if (there[k] != 0) rows[k][column] = value(buffer, column, values, k, begin);
        if (kinds[column] == BYTES && rows.length > 0)
            buffer.position(begin + ((int) values[rows.length - 1] + 7 & -8));
    }

    Object value(ByteBuffer buffer, int column, long[] values, int row, int begin) {
        switch (kinds[column]) {
            case WHOLE: return Long.valueOf(values[row]);
            case FLOAT: return Double.valueOf(Double.longBitsToDouble(values[row]));
            case BYTES: return bytes(buffer, row == 0 ? 0 : (int) values[row - 1], (int) values[row], begin);
            case DECIMAL: return decimal(values[2 * row], values[2 * row + 1], scales[column]);
            default: throw new IllegalArgumentException("no column has the kind " + kinds[column]);
        }
    }

    static byte[] bytes(ByteBuffer buffer, int start, int stop, int begin) {
        byte[] found = new byte[stop - start];
        System.arraycopy(buffer.array(), begin + start, found, 0, found.length);
        return found;
    }

    /** From the low and the high 64 bits of its digits. */
    static BigDecimal decimal(long low, long high, int scale) {
        BigInteger upper = BigInteger.valueOf(high).shiftLeft(64);
        BigInteger middle = BigInteger.valueOf(low >>> 32).shiftLeft(32);
        return new BigDecimal(upper.add(middle).add(BigInteger.valueOf(low & 0xFFFFFFFFL)), scale);
    }

    static long[] longs(ByteBuffer buffer, int count) {
        long[] found = new long[count];
        for (int k = 0; k < count; k++) found[k] = buffer.getLong();
        return found;
    }
}
