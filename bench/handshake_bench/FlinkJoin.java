import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.api.common.accumulators.LongCounter;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.functions.RichFlatMapFunction;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.datagen.source.DataGeneratorSource;
import org.apache.flink.connector.datagen.source.GeneratorFunction;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.datastream.SingleOutputStreamOperator;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.util.Collector;

/**
 * Flink's interval join of two streams in a local mini-cluster, for `handshake bench flink`.
 *
 * <p>Arguments: kind (equi or any), rows of each stream, rows per second, keys, window in ms, rows before the
 * measurement, parallelism. The last line of output has the results and the times after these rows.
 */
public final class FlinkJoin {
    private static final OperatingSystemMXBean SYSTEM =
            (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    private static final AtomicBoolean started = new AtomicBoolean();
    private static volatile long wall;
    private static volatile long processor;

    /** A row: number, time in ms, key, x, y. Rows of the left stream have even indexes, of the right odd ones. */
    public static final class Rows implements GeneratorFunction<Long, Tuple5<Long, Long, Integer, Integer, Integer>> {
        private final long rate;
        private final int keys;

        Rows(long rate, int keys) {
            this.rate = rate;
            this.keys = keys;
        }

        @Override
        public Tuple5<Long, Long, Integer, Integer, Integer> map(Long index) {
            long n = index >> 1;
            long time = n * 1000 / rate;
            return Tuple5.of(index, time, value(index, 0, keys), value(index, 1, 10_000), value(index, 2, 10_000));
        }
    }

    /** Mixes an index to a whole number from 0 to below a limit, as flink.py does: splitmix64. */
    static int value(long index, int column, int limit) {
        long z = (index * 3 + column) * 0x9E3779B97F4A7C15L;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return (int) (((z ^ (z >>> 31)) >>> 33) % limit);
    }

    /** Emits pairs that match, and starts the clock at the first row of the measurement. */
    public static final class Match
            extends ProcessJoinFunction<
                    Tuple5<Long, Long, Integer, Integer, Integer>,
                    Tuple5<Long, Long, Integer, Integer, Integer>,
                    Tuple2<Long, Long>> {
        private final boolean any;
        private final long first;

        Match(boolean any, long first) {
            this.any = any;
            this.first = first;
        }

        @Override
        public void processElement(
                Tuple5<Long, Long, Integer, Integer, Integer> left,
                Tuple5<Long, Long, Integer, Integer, Integer> right,
                Context context,
                Collector<Tuple2<Long, Long>> out) {
            if (Math.max(left.f0, right.f0) >= first && !started.get() && started.compareAndSet(false, true)) {
                startClock();
            }
            if (!any || (Math.abs(left.f3 - right.f3) <= 10 && Math.abs(left.f4 - right.f4) <= 10)) {
                out.collect(Tuple2.of(left.f0 >> 1, right.f0 >> 1));
            }
        }
    }

    /** Counts and sums up all pairs. */
    public static final class Sums extends RichFlatMapFunction<Tuple2<Long, Long>, Long> {
        private final LongCounter pairs = new LongCounter();
        private final LongCounter left = new LongCounter();
        private final LongCounter right = new LongCounter();
        private final LongCounter products = new LongCounter();

        @Override
        public void open(OpenContext context) {
            getRuntimeContext().addAccumulator("pairs", pairs);
            getRuntimeContext().addAccumulator("left", left);
            getRuntimeContext().addAccumulator("right", right);
            getRuntimeContext().addAccumulator("products", products);
        }

        @Override
        public void flatMap(Tuple2<Long, Long> pair, Collector<Long> out) {
            pairs.add(1);
            left.add(pair.f0);
            right.add(pair.f1);
            products.add(pair.f0 * pair.f1);
        }
    }

    private static void startClock() {
        wall = System.nanoTime();
        processor = SYSTEM.getProcessCpuTime();
    }

    private static JobExecutionResult join(
            boolean any, long rows, long rate, int keys, long window, long filled, int cores) throws Exception {
        StreamExecutionEnvironment flink =
                StreamExecutionEnvironment.createLocalEnvironment(cores, new Configuration());
        flink.getConfig().enableObjectReuse();
        flink.getConfig().setAutoWatermarkInterval(20);
        TypeInformation<Tuple5<Long, Long, Integer, Integer, Integer>> type =
                Types.TUPLE(Types.LONG, Types.LONG, Types.INT, Types.INT, Types.INT);
        SingleOutputStreamOperator<Tuple5<Long, Long, Integer, Integer, Integer>> both =
                flink.fromSource(
                                new DataGeneratorSource<>(new Rows(rate, keys), 2 * rows, type),
                                WatermarkStrategy.<Tuple5<Long, Long, Integer, Integer, Integer>>
                                                forMonotonousTimestamps()
                                        .withTimestampAssigner((row, old) -> row.f1),
                                "rows",
                                type)
                        .setParallelism(1);
        keyed(both, 0, any)
                .intervalJoin(keyed(both, 1, any))
                .between(Duration.ofMillis(-window), Duration.ofMillis(window))
                .lowerBoundExclusive()
                .upperBoundExclusive()
                .process(new Match(any, 2 * filled), Types.TUPLE(Types.LONG, Types.LONG))
                .flatMap(new Sums())
                .returns(Types.LONG)
                .sinkTo(new DiscardingSink<>());
        started.set(false);
        return flink.execute();
    }

    private static KeyedStream<Tuple5<Long, Long, Integer, Integer, Integer>, Integer> keyed(
            SingleOutputStreamOperator<Tuple5<Long, Long, Integer, Integer, Integer>> both, int side, boolean any) {
        SingleOutputStreamOperator<Tuple5<Long, Long, Integer, Integer, Integer>> one =
                both.filter(row -> (row.f0 & 1) == side).setParallelism(1);
        return one.keyBy(row -> any ? 0 : row.f2, Types.INT);
    }

    public static void main(String[] args) throws Exception {
        boolean any = args[0].equals("any");
        long rows = Long.parseLong(args[1]);
        long rate = Long.parseLong(args[2]);
        int keys = Integer.parseInt(args[3]);
        long window = Long.parseLong(args[4]);
        long filled = Long.parseLong(args[5]);
        int cores = Integer.parseInt(args[6]);
        join(any, Math.min(rows, 100_000), rate, keys, window, 0, cores);
        JobExecutionResult done = join(any, rows, rate, keys, window, filled, cores);
        long took = System.nanoTime() - wall;
        long worked = SYSTEM.getProcessCpuTime() - processor;
        System.out.printf(
                "{\"count\": %d, \"left\": %d, \"right\": %d, \"products\": %d, \"wall\": %.3f, \"processor\": %.3f}%n",
                done.<Long>getAccumulatorResult("pairs"),
                done.<Long>getAccumulatorResult("left"),
                done.<Long>getAccumulatorResult("right"),
                done.<Long>getAccumulatorResult("products"),
                took / 1e9,
                worked / 1e9);
    }
}
